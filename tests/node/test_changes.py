from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.node.changes import stage
from headwater.protocol.dcp.consumer_changes import Change
from tests.node.support import NOON, Desk
from tests.node.support import desk as opened


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with opened(tmp_path / "store") as made:
        yield made


@pytest.fixture
def change() -> Change:
    return Change(b"k", b"v", 12, 9, 77, 1, flags=5, expiry=2_000_000_000)


def test_a_document_is_kept_as_it_is(desk: Desk, change: Change) -> None:
    assert stage(desk.bucket, 1, change) == 12
    found = desk.store.document(1, b"k")
    assert found is not None
    assert (found.seqno, found.rev_seqno, found.cas, found.flags, found.expiry) == (12, 9, 77, 5, 2_000_000_000)


def test_what_its_producer_did_not_tell_is_made_here(desk: Desk) -> None:
    assert [stage(desk.bucket, 1, Change(key, b"", 0, 1, 0, 0)) for key in (b"a", b"b")] == [1, 2]
    found = desk.store.document(1, b"b")
    assert found is not None
    assert found.cas > 0


@pytest.mark.parametrize(("told", "kept"), [(7, 7), (None, NOON)])
def test_a_tombstone_has_the_time_that_was_told_or_that_of_now(desk: Desk, told: int | None, kept: int) -> None:
    stage(desk.bucket, 1, Change(b"k", b"", 3, 2, 8, 0, deleted=True, expired=True, delete_time=told))
    found = desk.store.document(1, b"k")
    assert found is not None
    assert (found.deleted, found.seqno, found.rev_seqno, found.cas, found.delete_time) == (True, 3, 2, 8, kept)
