"""The frame of declarations, and the texts and functions made of them."""

from __future__ import annotations

import pytest

from headwater.errors import OptionError
from headwater.pipelines import mirror as work
from headwater.pipelines.jobs import JobProgress, Mirror, OnEngines, losses_line
from headwater.pipelines.jobs.declared import session_settings, with_session

URL = "couchbase://127.0.0.1:1/b"


def test_progress_is_json_with_the_counts_of_every_job() -> None:
    assert JobProgress(batches=2, problem="x").to_json() == {
        "batches": 2,
        "rollbacks": 0,
        "retries": 0,
        "problem": "x",
        "seconds": 0.0,
        "data_loss": [],
    }


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


def test_a_url_names_its_bucket() -> None:
    assert Mirror("couchbase://a:1,b:2/orders", "./lake").bucket == "orders"


def test_a_job_that_does_nothing_says_what_it_lacks() -> None:
    with pytest.raises(TypeError, match="OnEngines has neither a sink"):
        OnEngines(URL).sink()
