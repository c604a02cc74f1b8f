"""The declaration of the mirror. Its work is tested beside its function."""

from __future__ import annotations

import pytest

from headwater.errors import OptionError
from headwater.pipelines.jobs import Mirror

URL = "couchbase://127.0.0.1:1/b"


def test_a_jobs_own_options_come_before_those_of_all_jobs() -> None:
    names = [option.field for option in Mirror.options()]
    assert names[:2] == ["source", "to"]
    assert names[-3:] == ["retry_seconds", "user", "password"]
    assert len(names) == len(set(names))


def test_the_source_gets_the_options_that_were_given_and_those_of_reading_come_first() -> None:
    job = Mirror(URL, user="ann", min_persisted=2, on_data_loss="fail", collections="a.b", reading={"user": "bob"})
    assert job.source_options() == {"url": URL, "user": "bob", "minPersisted": "2", "failOnDataLoss": "true"}
    assert Mirror(URL).source_options() == {"url": URL}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": None}, "or give its name in a catalog, with --table"),
        ({"dropped": "drop"}, "given with --collections or --scope"),
        ({"engine": "local", "table": "a.b.c"}, "the local engine has no catalog"),
        ({"engine": "local", "conf": {"a": "b"}}, "the local engine has no session"),
        ({"scope": "s", "collections": "s.c"}, "one or the other"),
        ({"on_data_loss": "Fail"}, "warn or fail"),
        ({"dropped": "remove", "scope": "s"}, "keep or drop"),
        ({"engine": "Spark"}, "spark or local"),
        ({"retry_seconds": -1.0}, "0 or more"),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_begins(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Mirror(**({"source": URL, "to": "./lake"} | options)).run()  # type: ignore[arg-type]


def test_a_name_in_sparks_own_catalog_is_gone_at_the_end_and_the_user_hears_of_it() -> None:
    assert "the name is gone when this ends" in " ".join(Mirror(URL, table="spark_catalog.shop.orders").remarks())
    hive = {"spark.sql.catalogImplementation": "hive"}
    assert list(Mirror(URL, table="spark_catalog.shop.orders", conf=hive).remarks()) == []
