"""Range scans in bytes (KV engine, docs/range_scans)."""

from headwater.wire import scans
from headwater.wire.status import Status


def test_a_continue_and_its_name_in_bytes() -> None:
    name = {"scan_high": 0x0011223344556677, "scan_low": 0x8899AABBCCDDEEFF}
    asked = scans.RangeScanContinue(vbucket=3, opaque=0x1210, item_limit=500, time_limit_ms=6, byte_limit=7, **name)
    data = bytes.fromhex(
        "80db00001c0000030000001c000012100000000000000000"
        "00112233445566778899aabbccddeeff" + "000001f4" + "00000006" + "00000007"
    )
    assert asked.encode() == data and scans.RangeScanContinue.decode(data) == asked
    cancel = scans.RangeScanCancel(vbucket=3, opaque=0x1210, **name)
    assert cancel.encode()[:1] == b"\x80" and cancel.encode()[24:] == data[24:40]
    created = scans.RangeScanCreated(opcode=0xDA, opaque=0x1210, **name)
    assert created.encode() == bytes.fromhex(
        "81da0000000000000000001000001210000000000000000000112233445566778899aabbccddeeff"
    )


def test_a_part_says_whether_it_has_keys_or_documents() -> None:
    part = scans.RangeScanPart(opcode=0xDB, status=Status.RANGE_SCAN_MORE, flags=1, value=b"x")
    assert part.encode() == bytes.fromhex("81db0000040000a600000005000000000000000000000000" + "00000001" + "78")
