"""The declarations of jobs, and the texts and functions made of them. The work is tested beside its function."""

from __future__ import annotations

import pytest

from headwater.errors import OptionError
from headwater.pipelines import mirror as work
from headwater.pipelines.jobs import Mirror, losses_line, session_settings, with_session

URL = "couchbase://127.0.0.1:1/b"


def test_a_jobs_own_options_come_before_those_of_all_jobs() -> None:
    names = [each.field for each in Mirror.options()]
    assert names[:2] == ["source", "to"]
    assert names[-3:] == ["retry_seconds", "user", "password"]
    assert len(names) == len(set(names))


def test_the_source_gets_the_options_that_were_given_and_those_of_reading_come_first() -> None:
    job = Mirror(URL, user="ann", min_persisted=2, on_data_loss="fail", collections="a.b", reading={"user": "bob"})
    assert job.source_options() == {"url": URL, "user": "bob", "minPersisted": "2", "failOnDataLoss": "true"}
    assert Mirror(URL).source_options() == {"url": URL}


def test_a_refusal_names_an_option_as_it_is_typed() -> None:
    assert Mirror.typed("copy_on_write") == "--copy-on-write"
    with pytest.raises(StopIteration):
        Mirror.typed("copied")


def test_a_function_of_a_job_runs_it_on_the_session_or_without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Mirror] = []
    monkeypatch.setattr(work, "work", begun.append)
    with_session(Mirror)(None, URL, "./lake", once=True)
    session = object()
    with_session(Mirror)(session, URL, to="./lake")  # type: ignore[arg-type]
    assert [(job.engine, job.spark, job.once) for job in begun] == [("local", None, True), ("spark", session, False)]


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


def test_settings_of_a_session_are_name_and_value() -> None:
    assert session_settings(["a=b=c", " d =1"]) == {"a": "b=c", "d": "1"}
    with pytest.raises(OptionError, match="NAME=VALUE"):
        session_settings(["a"])


def test_data_losses_are_told_with_their_first_vbuckets() -> None:
    assert losses_line([]) == []
    assert losses_line(list(range(12))) == [
        "data loss in vbuckets 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...: deletions were purged unread, "
        "so these were read again whole"
    ]
