"""The tables that catalogs hold up, without a mirror."""

from __future__ import annotations

from headwater.errors import CatalogAway, CatalogRefused, TableError
from headwater.pipelines.held import LONGEST_SECONDS, HeldTables, is_of_catalog

AWAY, REFUSED = CatalogAway("catalog prod", "503"), CatalogRefused("catalog prod", "403")
OF_SPARK = "An exception was thrown from Python:\nheadwater.errors.{}: catalog prod: closed"


def test_a_table_is_left_alone_for_a_while_and_forgotten_once_it_is_not_held_up_again() -> None:
    now = [0.0]
    held = HeldTables(lambda: now[0])
    for _ in range(20):
        held.begin_round()
        held.hold("shop.a", AWAY)
        assert "shop.a" in held and "shop.b" not in held
        held.end_round()
        held.begin_round()
        assert "shop.a" in held, "it is tried again at once"
        held.end_round()
        now[0] += LONGEST_SECONDS
    held.begin_round()
    assert "shop.a" not in held and held.text == "shop.a is held up: catalog prod: 503"
    held.end_round()
    assert held.text == "" and held.error is None


def test_the_tables_are_named_and_an_error_that_may_pass_comes_first() -> None:
    held = HeldTables(lambda: 0.0)
    held.hold("shop.a", REFUSED)
    held.hold("shop.b", AWAY)
    assert held.text == "shop.a is held up: catalog prod: 403; so is shop.b" and held.error is AWAY
    held.hold("shop.c", AWAY)
    assert held.text.endswith("; so are shop.b, shop.c")


def test_errors_of_catalogs_are_known_out_of_spark_as_well() -> None:
    assert is_of_catalog(AWAY) and is_of_catalog(REFUSED) and not is_of_catalog(TableError("t", "none"))
    assert is_of_catalog(RuntimeError(OF_SPARK.format("CatalogRefused")))
    assert not is_of_catalog(RuntimeError(OF_SPARK.format("TableError"))) and not is_of_catalog(RuntimeError("?"))
