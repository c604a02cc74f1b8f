"""CRC-32C against the examples of RFC 3720, appendix B.4."""

import pytest

from headwater.kernels.crc import crc32c

EXAMPLES = {
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
    b"123456789": 0xE3069283,
    b"": 0,
}


@pytest.mark.parametrize(("data", "checksum"), EXAMPLES.items())
def test_the_examples_of_the_standard(data: bytes, checksum: int) -> None:
    assert crc32c(data) == checksum
