"""TAP: options behind the key, the engine-private section, byte order."""

from dataclasses import replace

import pytest

from headwater.errors import BadMessage, LocalProtocolError
from headwater.wire import tap
from headwater.wire.dialect import Dialect, decode
from headwater.wire.header import Frame, Magic

BACKFILL = bytes.fromhex("804000050400000000000011000000000000000000000000000000016e6f64653100000000ffffffff")
MUTATION = bytes.fromhex(
    "80410005100000060000002300000003000000000000001100090005ff0000000200000600000000"
    "0000000000000001026d796b657976616c7565"
)


def test_the_backfill_of_the_specification():
    message = tap.Connect(key=b"node1", flags=tap.ConnectFlag.BACKFILL, backfill_age=0xFFFF_FFFF)
    assert message.encode() == BACKFILL and decode(BACKFILL, Dialect.TAP) == message


def test_the_mutation_of_the_specification():
    message = tap.Mutation(
        vbucket=6,
        opaque=3,
        cas=17,
        flags=tap.MessageFlag.ACK | tap.MessageFlag.NETWORK_BYTE_ORDER,
        item_flags=0x02000006,
        engine_specific=tap.revision(1, nru=2),
        key=b"mykey",
        value=b"value",
    )
    assert message.encode() == MUTATION and decode(MUTATION, Dialect.TAP) == message
    assert (message.engine_len, message.rev_seqno, message.client_flags) == (9, 1, 0x02000006)


def test_option_values_follow_in_the_order_of_their_bits():
    message = tap.Connect(
        flags=0xC5,
        backfill_age=5,
        vbuckets=[1, 2],
        checkpoints=[(1, 7)],
        closed_checkpoints_only=1,
    )
    value = message.frame().value
    assert value.hex() == "0000000000000005" + "000200010002" + "000100010000000000000007" + "01"
    assert tap.Connect.decode(message.encode()) == message


@pytest.mark.parametrize("extras", ["", "00000000", "0000000000000000"])
def test_flags_take_0_4_or_8_bytes(extras):
    frame = Frame(Magic.CLIENT_REQUEST, 0x40, key=b"node1", extras=bytes.fromhex(extras))
    assert decode(frame, Dialect.TAP).encode() == frame.encode()


def test_an_option_without_its_flag_is_refused_both_ways():
    with pytest.raises(BadMessage, match="value: 8 of 8 bytes are left over"):
        tap.Connect.decode(Frame(Magic.CLIENT_REQUEST, 0x40, key=b"node1", value=bytes(8)))
    with pytest.raises(LocalProtocolError, match="vbuckets must be given exactly when flag 0x4 is set"):
        tap.Connect(flags=4).encode()


def test_a_vbucket_list_longer_than_its_body_is_refused():
    frame = Frame(Magic.CLIENT_REQUEST, 0x40, extras=bytes.fromhex("00000004"), value=bytes.fromhex("ffff0001"))
    with pytest.raises(BadMessage, match="2 bytes expected at offset 4 of 4"):
        tap.Connect.decode(frame)


def test_item_flags_of_an_old_sender_are_reversed():
    assert tap.Mutation(key=b"k", item_flags=0x06000002).client_flags == 0x02000006


def test_what_the_engine_part_does_not_hold_is_not_made_up():
    assert (
        tap.Mutation(key=b"k").rev_seqno == 1 and tap.Delete(key=b"k", engine_specific=tap.revision(9)).rev_seqno == 9
    )
    assert tap.Opaque(engine_specific=bytes(3)).code is None
    assert tap.Opaque(engine_specific=bytes.fromhex("00000008")).code == tap.OpaqueCode.CLOSE_BACKFILL
    assert tap.VbucketSet(engine_specific=bytes.fromhex("00000003aa")).state == 3


def test_checkpoint_messages_come_with_8_or_16_bytes_of_extras():
    for message in (
        tap.CheckpointStart(checkpoint_id=255),
        tap.CheckpointStart(checkpoint_id=255, item_flags=0, item_expiration=0, engine_specific=bytes(8)),
        tap.CheckpointEnd(checkpoint_id=255, key=b"checkpoint_end"),
    ):
        assert decode(message.encode(), Dialect.TAP) == message


def test_a_message_asks_for_an_answer_by_a_flag_even_if_the_rest_of_it_is_broken():
    asks = tap.Flush(flags=tap.MessageFlag.ACK).frame()
    assert tap.asks_for_answer(asks) and tap.asks_for_answer(replace(asks, extras=asks.extras[:4]))
    assert not tap.asks_for_answer(tap.Flush().frame()) and not tap.asks_for_answer(replace(asks, extras=b""))
