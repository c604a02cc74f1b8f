"""The privileges that a frame needs of its sender."""

from struct import pack

import pytest

from headwater.node.kv.rights import rule_of
from headwater.wire.dcp import StreamFlag
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.privilege import LOGIN, READ, REPLICATE, STREAM, WRITE
from headwater.wire.tap import ConnectFlag


def needed(opcode: int, extras: bytes = b"") -> int:
    return rule_of(opcode).needed(Frame(0x80, opcode, extras=extras))


def test_a_frame_needs_what_its_request_declares() -> None:
    assert needed(Opcode.GET) == READ
    assert needed(Opcode.GATQ) == READ | WRITE


def test_the_flags_of_an_open_say_who_produces() -> None:
    assert needed(Opcode.DCP_OPEN, pack(">II", 0, 1)) == LOGIN | STREAM
    assert needed(Opcode.DCP_OPEN, pack(">II", 0, 4)) == LOGIN | REPLICATE


@pytest.mark.parametrize("extras_bytes", [40, 48])
def test_a_takeover_needs_more_than_a_stream_in_either_dialect(extras_bytes: int) -> None:
    for flags, expected in ((0, STREAM), (StreamFlag.TAKEOVER, STREAM | REPLICATE)):
        assert needed(Opcode.DCP_STREAM_REQ, pack(">I", flags).ljust(extras_bytes, b"\0")) == expected


@pytest.mark.parametrize("form", [">I", ">Q"])
def test_so_does_one_by_tap_whatever_the_width_of_its_flags(form: str) -> None:
    assert needed(Opcode.TAP_CONNECT) == STREAM
    assert needed(Opcode.TAP_CONNECT, pack(form, ConnectFlag.DUMP)) == STREAM
    assert needed(Opcode.TAP_CONNECT, pack(form, ConnectFlag.TAKEOVER_VBUCKETS)) == STREAM | REPLICATE


def test_extras_of_no_known_length_need_no_more_and_are_refused_by_who_reads_them() -> None:
    assert needed(Opcode.DCP_OPEN, b"odd") == LOGIN


def test_an_opcode_that_nobody_declares_has_no_rule() -> None:
    with pytest.raises(TypeError, match="0xc1"):
        rule_of(0xC1)
