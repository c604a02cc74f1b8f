"""Readers of a world: what they hold, and where they go back to."""

from random import Random

from harness.simulation.histories import Change
from harness.world.readers import WorldReader
from headwater.protocol.dcp.position import Position


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
