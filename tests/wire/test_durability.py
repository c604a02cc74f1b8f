"""The levels of durable writes."""

import pytest

from headwater.errors import BadMessage
from headwater.wire import dcp
from headwater.wire.durability import DurabilityLevel, majority_of
from headwater.wire.framing import FrameInfo, RequestInfo, decode_durability, decode_framing, durability_framing
from headwater.wire.status import Status


@pytest.mark.parametrize(
    ("level", "number", "label"),
    [
        (DurabilityLevel.MAJORITY, 1, "majority"),
        (DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE, 2, "majority-and-persist-to-active"),
        (DurabilityLevel.PERSIST_TO_MAJORITY, 3, "persist-to-majority"),
    ],
)
def test_a_level_has_a_number_a_name_and_bytes(level: DurabilityLevel, number: int, label: str) -> None:
    assert (level, level.label, DurabilityLevel.read(label), DurabilityLevel.read(level.name)) == (
        number,
        label,
        level,
        level,
    )
    assert durability_framing(level) == bytes([0x11, number])
    assert durability_framing(level, 0x0102) == bytes([0x13, number, 1, 2])
    assert decode_framing(bytes([0x13, number, 1, 2])) == [FrameInfo(RequestInfo.DURABILITY, bytes([number, 1, 2]))]
    assert decode_durability(bytes([number, 1, 2])) == (level, 0x0102)
    prepare = dcp.Prepare(by_seqno=1, durability_level=level, key=b"k", cas=1, rev_seqno=1)
    assert dcp.Prepare.decode(prepare.encode()).durability_level == number


def test_other_texts_and_numbers_are_no_levels() -> None:
    with pytest.raises(ValueError, match="'most' is none of majority, majority-and-persist-to-active, persist-to-majo"):
        DurabilityLevel.read("most")
    for number in (0, 4, 255):
        with pytest.raises(BadMessage, match=f"durability level {number} is not 1, 2 or 3") as refused:
            decode_durability(bytes([number]))
        assert refused.value.status == Status.DURABILITY_INVALID_LEVEL
    assert list(map(int, DurabilityLevel)) == [1, 2, 3]


def test_two_majorities_share_a_copy() -> None:
    assert [majority_of(copies) for copies in range(1, 7)] == [1, 2, 2, 3, 3, 4]
