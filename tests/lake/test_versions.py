"""The columns of what a change replaced are the same in change logs and in rows of the Spark source."""

from __future__ import annotations

from headwater.lake import changes
from headwater.lake.shape import CHANGES, arrow_schema
from headwater.lake.versions import BEFORES, VERSION
from headwater.spark.columns import RowMaker
from headwater.spark.schema import OF_BEFORES


def test_a_change_log_and_the_source_have_the_same_columns_of_the_same_types() -> None:
    names = (*tuple(CHANGES)[:-1], *BEFORES)
    logged = arrow_schema(changes.fields(befores=True))
    read = RowMaker(names, "binary", "binary").schema
    assert {name: logged.field(name).type for name in names} == {name: read.field(name).type for name in names}
    assert list(BEFORES) == list(OF_BEFORES)


def test_a_version_is_what_a_change_has_without_its_key() -> None:
    assert VERSION.keys() <= CHANGES.keys()


def test_the_columns_come_behind_those_that_each_log_has() -> None:
    plain, with_befores = changes.fields(), changes.fields(befores=True)
    assert with_befores[: len(plain)] == plain and len(with_befores) == len(plain) + len(BEFORES)
