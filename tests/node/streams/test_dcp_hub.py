"""State that the DCP connections of a bucket share: names, and the news of a lost batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.streams.support import Producer, StreamDesk


@pytest.fixture
def one(tmp_path: Path) -> Iterator[StreamDesk]:
    made = StreamDesk(tmp_path / "store")
    yield made
    made.close()


def test_a_name_goes_to_the_newer_connection_and_stays_with_it_when_the_older_is_gone(one: StreamDesk) -> None:
    older, newer = Producer(one, "mirror"), Producer(one, "mirror")
    assert older.connection.is_closed and "another connection took the name" in older.connection.dropped
    assert one.dcp.sessions == {b"mirror": newer.session}
    newer.session.closed()
    assert one.dcp.sessions == {}


def test_the_numbers_tell_producers_from_consumers(one: StreamDesk) -> None:
    Producer(one, "reads")
    Producer(one, "also reads")
    Producer(one, "feeds", flags=0)
    told = dict(one.dcp.stats([]))
    assert (told["ep_dcp_count"], told["ep_dcp_producer_count"], told["ep_dcp_consumer_count"]) == ("3", "2", "1")
    assert (told["eq_dcpq:reads:type"], told["eq_dcpq:feeds:type"]) == ("producer", "consumer")


def test_a_lost_batch_ends_connections_that_stage_changes_and_no_others(one: StreamDesk) -> None:
    reads, feeds = Producer(one, "reads"), Producer(one, "feeds", flags=0)
    for failed in one.committer.on_failure:
        failed(OSError("the disk is gone"), [])  # type: ignore[operator]
    assert feeds.connection.dropped == "a batch could not be written: the disk is gone"
    assert not reads.connection.is_closed
