import pytest

from headwater.errors import BadMessage
from headwater.wire import dcp
from headwater.wire.header import Frame, Magic
from headwater.wire.records import LOG_ENTRY_BYTES, CacheItem, FailoverLog, decode_log, encode_log


def test_cache_items_carry_their_own_lengths():
    item = CacheItem(4, 1, 5, 0, 0, 0, 10, b"hello", b"world")
    message = dcp.CacheTransfer(items=[item, item._replace(key=b"k", value=b"")])
    assert dcp.CacheTransfer.decode(message.encode()) == message
    cut = message.frame().value[:-1]
    with pytest.raises(BadMessage, match=r"a record of 1 \+ 0 bytes at offset 90 of 90"):
        dcp.CacheTransfer.decode(Frame(Magic.CLIENT_REQUEST, 0x66, value=cut))


def test_a_record_is_its_numbers_and_then_key_and_value():
    item = CacheItem(
        cas=1, by_seqno=2, rev_seqno=3, flags=4, expiration=5, datatype=1, cache_hint=6, key=b"k", value=b"vv"
    )
    value = dcp.CacheTransfer(items=[item]).frame().value
    assert value.hex() == ("000000000000000100000000000000020000000000000003000000020000000400000005000101066b7676")


def test_lengths_that_lie_are_refused_before_anything_is_cut_out():
    value = bytearray(dcp.CacheTransfer(items=[CacheItem(1, 2, 3, 0, 0, 0, 0, b"k", b"v")]).frame().value)
    value[24:28] = b"\xff\xff\xff\xff"
    with pytest.raises(BadMessage, match=r"a record of 1 \+ 4294967295 bytes"):
        dcp.CacheTransfer.decode(Frame(Magic.CLIENT_REQUEST, 0x66, value=bytes(value)))


def test_a_failover_log_has_sixteen_bytes_an_entry():
    (rows,) = FailoverLog.__metadata__
    assert rows.write([(1, 2), (3, 4)]).hex() == "0000000000000001000000000000000200000000000000030000000000000004"


def test_a_failover_log_is_written_and_read_in_entries_of_sixteen_bytes():
    log = [(0xAA, 7), (0xBB, 0)]
    assert encode_log(log).hex() == "00000000000000aa000000000000000700000000000000bb0000000000000000"
    assert decode_log(encode_log(log)) == log and len(encode_log(log)) == 2 * LOG_ENTRY_BYTES
    for broken in (b"", encode_log(log)[:-1]):
        with pytest.raises(ValueError, match="expected"):
            decode_log(broken)
