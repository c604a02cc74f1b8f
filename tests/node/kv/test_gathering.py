"""Which requests are a matter of several workers, and how their answers become one."""

from __future__ import annotations

import pytest

from headwater.node.kv.gathering import Gathering, merged, seqnos_in, shares_of, states_in, vbucket_in
from headwater.node.refused import CommandRefused
from headwater.wire import meta, tap
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

PATHS = ("a", "b")


def path_of(vbucket: int) -> str | None:
    """Where a vbucket is: here, at a, at b, in turn."""
    return (None, *PATHS)[vbucket % 3]


def asked(frame: Frame) -> dict[str, Frame]:
    return shares_of(frame, lambda: PATHS, path_of)


@pytest.mark.parametrize(
    ("key", "vbucket"),
    [
        (b"vbucket 5", 5), (b"failovers 12", 12), (b"vbucket", None), (b"vbucket x", None), (b"vbucket 123456", None),
        (b"vbucket-copies 5", None), (b"dcp 5", None), (b"", None), (b"\xff 1", None),
    ],
)  # fmt: skip
def test_statistics_of_a_vbucket_are_its_workers(key: bytes, vbucket: int | None) -> None:
    assert vbucket_in(Frame(0x80, Opcode.STAT, key)) == vbucket


def test_seqnos_and_statistics_of_the_node_are_asked_of_all_and_others_of_nobody() -> None:
    for frame in (Frame(0x80, Opcode.GET_ALL_VB_SEQNOS), Frame(0x80, Opcode.STAT), Frame(0x80, Opcode.STAT, b"dcp")):
        assert asked(frame) == {"a": frame, "b": frame}
    for frame in (Frame(0x80, Opcode.STAT, b"timings"), Frame(0x80, Opcode.STAT, b"vbucket 1"), Frame(0x80, 0)):
        assert asked(frame) == {}


def test_each_worker_is_asked_for_its_own_keys_only() -> None:
    keys = [(vb, b"key-%d" % vb) for vb in range(6)]
    frame = meta.Observe(keys=keys, opaque=7).frame()
    shares = {path: meta.Observe.decode(each).keys for path, each in asked(frame).items()}
    assert shares == {"a": [keys[1], keys[4]], "b": [keys[2], keys[5]]}
    assert asked(meta.Observe(keys=[keys[0], keys[3]]).frame()) == {}
    assert asked(Frame(0x80, Opcode.OBSERVE, value=b"?")) == {}


def test_the_first_refusal_of_a_share_refuses_the_request() -> None:
    gathering = Gathering()
    gathering.answers += [Frame(0x81, Opcode.STAT), Frame(0x81, Opcode.STAT, vbucket=Status.EACCESS)]
    refused = gathering.outcome()
    assert refused is not None and refused.status == Status.EACCESS
    assert Gathering().outcome() is None
    assert Gathering(refused).outcome() is refused
    assert isinstance(refused, CommandRefused)


def test_answers_become_one() -> None:
    rows = bytes.fromhex("0001 0000000000000005 0003 0000000000000007")
    assert seqnos_in([Frame(0x81, Opcode.GET_ALL_VB_SEQNOS, value=rows)]) == [(1, 5), (3, 7)]
    state = meta.ObserveResponse(states=[(3, b"key", 1, 99)])
    assert states_in(
        [state.answering(Frame(0x80, Opcode.OBSERVE)) and Frame.decode(state.answering(Frame(0x80, Opcode.OBSERVE)))]
    ) == {(3, b"key"): (1, 99)}


def test_counts_are_summed_and_of_other_statistics_one_is_told() -> None:
    def stat(key: bytes, value: bytes) -> Frame:
        return Frame(0x81, Opcode.STAT, key, value=value)

    theirs = [stat(b"curr_items", b"2"), stat(b"pid", b"8"), stat(b"vb_1", b"active"), stat(b"", b"")]
    again = [stat(b"curr_items", b"3"), stat(b"0x0:0x8:items", b"4"), stat(b"vb_2", b"active")]
    own = [("curr_items", "1"), ("pid", "7"), ("0x0:0x8:items", "1")]
    assert dict(merged(own, [*theirs, *again])) == {
        "curr_items": "6", "pid": "7", "0x0:0x8:items": "5", "vb_1": "active", "vb_2": "active",
    }  # fmt: skip


def test_a_worker_without_a_document_refuses_no_random_one() -> None:
    gathering = Gathering()
    gathering.answers += [
        Frame(0x81, Opcode.GET_RANDOM_KEY, vbucket=each) for each in (Status.KEY_ENOENT, Status.UNKNOWN_COLLECTION)
    ]
    assert gathering.outcome() is None
    gathering.answers.append(Frame(0x81, Opcode.GET_RANDOM_KEY, vbucket=Status.EACCESS))
    refused = gathering.outcome()
    assert refused is not None and refused.status == Status.EACCESS
    assert asked(Frame(0x80, Opcode.GET_RANDOM_KEY)) == dict.fromkeys(PATHS, Frame(0x80, Opcode.GET_RANDOM_KEY))


def test_messages_of_a_feed_go_to_the_worker_of_their_vbucket_and_what_is_about_all_of_it_to_all() -> None:
    begins = tap.Opaque(vbucket=5, engine_specific=tap.code_or_state(tap.OpaqueCode.INITIAL_VBUCKET_STREAM)).frame()
    for frame in (tap.Mutation(vbucket=5, key=b"k").frame(), tap.VbucketSet(vbucket=5).frame(), begins):
        assert vbucket_in(frame) == 5 and asked(frame) == {}
    for frame in (tap.Flush().frame(), tap.Opaque(engine_specific=bytes(4)).frame()):
        assert vbucket_in(frame) is None and asked(frame) == dict.fromkeys(PATHS, frame)
    for frame in (tap.Opaque().frame(), Frame(0x80, Opcode.TAP_OPAQUE)):
        assert vbucket_in(frame) is None and asked(frame) == {}
