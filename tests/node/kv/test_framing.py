"""Framing extras of requests."""

import pytest

from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from tests.node.support import NOON, Talk

SET, GET = 1, 0


def flexible(talk: Talk, framing: bytes, opcode: int = SET, **sections: object) -> Frame:
    given: dict[str, object] = {"key": b"k", "extras": bytes(8) if opcode == SET else b"", **sections}
    request = Frame(0x08, opcode, framing=framing, **given).encode()  # type: ignore[arg-type]
    assert talk.give(request) == len(request)
    (answer,) = FrameBuffer().receive_data(talk.bytes_sent())
    return answer


@pytest.mark.parametrize(
    ("framing", "status"),
    [
        (b"", 0),
        (b"\x00", 0),
        (b"\x22\x00\x01", 0),
        (b"\x01\x00", 4),
        (b"\x11\x09", 0xA0),
        (b"\x13\x01\x00\x00", 4),
        (b"\x13\x01\xff\xff", 4),
        (b"\x12\x01\x00", 4),
        (b"\x42ab", 0x24),
        (b"\x61a", 0x24),
        (b"\x30", 0x80),
        (b"\xf0\x10", 0x80),
        (b"\x45ab", 4),
        (b"\x00\x30", 0x80),
    ],
)
def test_each_object_is_kept_or_refused(talk: Talk, framing: bytes, status: int) -> None:
    talk.hello(7)
    assert flexible(talk, framing).status == status


def test_preserve_ttl_keeps_the_expiry_where_it_may(talk: Talk) -> None:
    talk.hello(7)
    assert talk.one(SET, key=b"k", extras=b"\0\0\0\0\0\0\0\x64", value=b"1").status == 0
    assert flexible(talk, b"\x50", value=b"2").status == 0
    stored = talk.desk.store.document(0, b"k")
    assert stored is not None and (stored.value, stored.expiry) == (b"2", NOON + 100)
    assert flexible(talk, b"\x50", GET).status == 0x83


def test_durability_on_a_read_is_einval(talk: Talk) -> None:
    talk.hello(7)
    assert flexible(talk, b"\x11\x01", GET).status == 4
