"""Readers of a world: what they hold, and where they go back to."""

from random import Random

from harness.simulation.histories import Change
from harness.world.readers import WorldReader
from headwater.client.changes import SnapshotMarker
from headwater.protocol.dcp.position import Position
from headwater.wire.dcp import SnapshotFlag


def reader() -> WorldReader:
    return WorldReader("r", [], 1, Random(1), lambda *_: None)


def test_a_reader_goes_back_to_the_newest_place_that_was_complete_and_drops_what_came_after() -> None:
    one = reader()
    for seqno in (2, 5, 7):
        one.held[0][seqno] = Change(b"k%d" % seqno, b"v", seqno, 1)
        one._save(Position(0, 9, seqno, seqno, seqno))
    one._go_back(0, 6)
    assert (one.position(0).seqno, one.rollbacks, sorted(one.held[0])) == (5, 1, [2, 5])
    one._go_back(0, 0)
    assert (one.position(0), one.held[0]) == (Position.beginning(0), {})


def test_of_the_places_within_a_snapshot_only_the_newest_is_kept() -> None:
    one = reader()
    for seqno in (1, 2, 3):
        one._save(Position(0, 9, seqno, 1, 9))
    assert [each.seqno for each in one.places[0]] == [0, 3]


def test_its_documents_are_the_newest_change_of_each_key() -> None:
    one = reader()
    old, new = Change(b"k", b"old", 1, 1), Change(b"k", None, 2, 2)
    one.held[0] = {4: new, 1: old}
    assert one.documents(0) == {b"k": (4, new)}


def test_a_reader_of_versions_knows_of_which_seqnos_it_was_told_the_last_versions_alone() -> None:
    one = WorldReader("r", [], 1, Random(1), lambda *_: None, history=True)
    one._announced(SnapshotMarker(0, 0, 6, SnapshotFlag.DISK), Position(0, 9, 0, 0, 6))
    one._announced(SnapshotMarker(0, 6, 9, SnapshotFlag.MEMORY | SnapshotFlag.HISTORY), Position(0, 9, 6, 6, 9))
    assert [seqno for seqno in range(1, 10) if not one.has_versions(0, seqno)] == [1, 2, 3, 4, 5, 6]


def test_what_it_lacked_of_a_history_that_it_left_is_forgotten_with_it() -> None:
    one = WorldReader("r", [], 1, Random(1), lambda *_: None, history=True)
    one._save(Position(0, 9, 4, 4, 4))
    one.gaps[0] = [(0, 3), (3, 8), (8, 9)]
    one._go_back(0, 5)
    assert one.gaps[0] == [(0, 3), (3, 4)]
