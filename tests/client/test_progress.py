"""When a trouble begins and when it is over."""

from headwater.client.progress import STEADY_SECONDS, VBucketProgress
from headwater.protocol.dcp.position import Position
from headwater.transport.backoff import Backoff


def vbucket_at(seqno: int = 0) -> VBucketProgress:
    backoff = Backoff(1.0, 100.0, chance=lambda: 1.0)
    return VBucketProgress(Position(0, 1, seqno, seqno, seqno), 10, backoff=backoff)


def test_failing_again_and_again_is_one_trouble_with_growing_delays():
    one = vbucket_at()
    assert [one.note_failure(now) for now in (100.0, 101.0, 103.0)] == [1.0, 2.0, 4.0] and one.trouble_since == 100.0


def test_coming_on_by_a_change_ends_a_trouble():
    one = vbucket_at()
    one.note_failure(100.0)
    one.position = Position(0, 1, 1, 1, 1)
    assert one.note_failure(150.0) == 1.0 and one.trouble_since == 150.0


def test_a_stream_that_held_for_a_while_had_no_trouble():
    one = vbucket_at()
    one.note_failure(100.0)
    one.opened_at = 101.0
    assert one.note_failure(101.0 + STEADY_SECONDS) == 1.0 and one.trouble_since == 101.0 + STEADY_SECONDS


def test_a_stream_that_broke_at_once_is_the_same_trouble():
    one = vbucket_at()
    one.note_failure(100.0)
    one.opened_at = 101.0
    assert one.note_failure(101.1) == 2.0 and one.trouble_since == 100.0
