"""The declaration of the observer. Its work is tested beside its function."""

from __future__ import annotations

from headwater.pipelines.jobs import ObserveProgress, Observer
from headwater.pipelines.observe import rules_of
from headwater.pipelines.windows import WindowRules

URL = "couchbase://127.0.0.1:1/b"


def test_it_begins_with_what_is_written_from_now_on_and_a_look_back_with_all_there_is() -> None:
    assert Observer(URL).source_options() == {"url": URL, "startingOffsets": "latest"}
    assert Observer(URL, once=True).source_options()["startingOffsets"] == "earliest"
    assert Observer(URL, once=True, since="latest").source_options()["startingOffsets"] == "latest"
    assert Observer(URL, reading={"startingOffsets": "{}"}).source_options()["startingOffsets"] == "{}"


def test_a_batch_that_closed_no_window_has_no_line() -> None:
    assert Observer(URL).line(ObserveProgress(batches=3, changes=7, data_loss=[1])) == ""


def test_a_sink_of_its_own_begins_where_the_source_would() -> None:
    assert Observer(URL).beginning() == {"v": 1, "latest": True}
    assert Observer(URL, once=True).beginning() == {"v": 1, "vb": {}}


def test_the_rules_are_those_of_the_job() -> None:
    job = Observer(URL, window_seconds=60, delay_seconds=30, separator="/", depth=2, hot=0, prefixes_max=7)
    assert rules_of(job, by_collection=True) == WindowRules(60, 30, "/", 2, 7, 0, by_collection=True)
