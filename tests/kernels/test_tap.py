import numpy as np

from headwater.kernels import tap as kernel
from headwater.node.storage.records import since_bits
from headwater.wire import dcp, tap
from headwater.wire.dialect import Dialect, decode
from headwater.wire.framing import FrameBuffer
from headwater.wire.layout import Message

OPAQUES = 0xFFFF_FFFF


def reshaped(
    *changes: Message,
    number: int = 1,
    ack_interval: int = 0,
    flags: int = 0,
    swap: int = 0,
    datatypes: int = 0,
    ttl_min: int = 0,
) -> tuple[list[Message], list[int]]:
    frames = np.frombuffer(b"".join(change.encode() for change in changes), np.uint8)
    out, seqnos = np.zeros(len(frames), np.uint8), np.zeros(len(changes), np.uint64)
    size, count, last = kernel.reshape(
        frames, len(frames), out, number, ack_interval, flags, swap, datatypes, ttl_min, seqnos
    )
    found = FrameBuffer().receive_data(out[: int(size)].tobytes())
    assert count == len(found)
    assert not found or int(last) == int(size) - len(found[-1])
    return [decode(frame, Dialect.TAP) for frame in found], seqnos[: int(count)].tolist()


def stored(seqno: int, key: bytes = b"k", **fields: int) -> dcp.Mutation:
    return dcp.Mutation(vbucket=3, by_seqno=seqno, rev_seqno=9, key=key, value=b"value", cas=7, **fields)  # type: ignore[arg-type]


def test_a_mutation_keeps_everything_that_tap_has_a_place_for() -> None:
    (message,), seqnos = reshaped(stored(5, flags=0x01020304, expiration=77, nru=2))
    expected = tap.Mutation(
        vbucket=3,
        opaque=1,
        cas=7,
        key=b"k",
        value=b"value",
        item_flags=0x01020304,
        item_expiration=77,
        engine_specific=tap.revision(9, 2),
    )
    assert (message, seqnos) == (expected, [5])


def test_deletions_of_both_forms_and_expirations_become_deletes() -> None:
    forms = (
        dcp.Deletion(by_seqno=1, rev_seqno=4, key=b"a", cas=8),
        dcp.DeletionV2(by_seqno=2, rev_seqno=4, key=b"b", cas=8, delete_time=1_700_000_000),
        dcp.Expiration(by_seqno=3, rev_seqno=4, key=b"c", cas=8, delete_time=1_700_000_000),
    )
    messages, seqnos = reshaped(*forms, flags=int(tap.MessageFlag.NETWORK_BYTE_ORDER))
    assert messages == [
        tap.Delete(opaque=at, cas=8, key=key, engine_specific=tap.revision(4))
        for at, key in ((1, b"a"), (2, b"b"), (3, b"c"))
    ]
    assert seqnos == [1, 2, 3]


def test_item_flags_are_reversed_for_clients_that_expect_it() -> None:
    (message,), _ = reshaped(stored(1, flags=0x01020304), swap=1)
    assert isinstance(message, tap.Mutation)
    assert (message.item_flags, message.client_flags) == (0x04030201, 0x01020304)


def test_opaques_wrap_to_1_and_multiples_of_the_interval_ask() -> None:
    messages, _ = reshaped(stored(1), stored(2), stored(3), number=OPAQUES - 1, ack_interval=OPAQUES)
    assert [message.opaque for message in messages] == [OPAQUES - 1, OPAQUES, 1]
    assert [message.flags for message in messages] == [0, 1, 0]  # type: ignore[attr-defined]


def test_datatypes_are_those_the_client_understands() -> None:
    for mask, expected in ((0, 0), (1, 1)):
        (message,), _ = reshaped(stored(1, datatype=1), datatypes=mask)
        assert message.datatype == expected


def test_the_hops_of_a_change_are_taken_from_its_time_to_live() -> None:
    messages, seqnos = reshaped(*(stored(seqno, opaque=hops) for seqno, hops in ((1, 0), (2, 1), (3, 254))))
    assert [message.ttl for message in messages] == [255, 254, 1]  # type: ignore[attr-defined]
    assert seqnos == [1, 2, 3]


def test_the_age_of_a_tombstone_counts_for_no_hops() -> None:
    since = since_bits(1, 1_700_000_000)
    tombstone = dcp.DeletionV2(by_seqno=1, rev_seqno=1, key=b"k", delete_time=1, opaque=2 | since)
    assert since > 0 and [message.ttl for message in reshaped(tombstone)[0]] == [253]  # type: ignore[attr-defined]


def test_what_came_through_too_many_nodes_is_no_message_and_has_no_number() -> None:
    worn = (stored(1, opaque=255), stored(2), dcp.Deletion(by_seqno=3, rev_seqno=1, key=b"a", opaque=255))
    messages, seqnos = reshaped(*worn, number=7)
    assert ([message.opaque for message in messages], seqnos) == ([7], [2])
    messages, seqnos = reshaped(*worn, ttl_min=1)
    assert ([message.ttl for message in messages], seqnos) == ([1, 255, 1], [1, 2, 3])  # type: ignore[attr-defined]
    assert reshaped(stored(1, opaque=255)) == ([], [])
