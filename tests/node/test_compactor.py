"""When compaction is worth it."""

import pytest

from headwater.node.compactor import DEAD_BYTES_MIN, is_worthwhile

MIB = 1 << 20


@pytest.mark.parametrize(
    ("log", "live", "left", "worth"),
    [
        (DEAD_BYTES_MIN, 0, 0, False),
        (DEAD_BYTES_MIN + 1, 0, 0, True),
        (1000 * MIB, 500 * MIB, 0, False),
        (1000 * MIB, 499 * MIB, 0, True),
        (1000 * MIB, 400 * MIB, 590 * MIB, False),
        (1000 * MIB, 300 * MIB, 590 * MIB, True),
    ],
)
def test_more_than_half_dead_and_enough_more_than_the_last_run_left(
    log: int, live: int, left: int, worth: bool
) -> None:
    assert is_worthwhile(log, live, left) is worth
