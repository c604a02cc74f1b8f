"""Copies made of blocks: all bytes asked for, and none besides, in both builds."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.kernels import builds, copying, guard

CHECKED = builds.debug_copy("headwater.kernels.copying")
NAMES = ["copy_key", "copy_value"]
MARGIN = 70


def compiled(name: str) -> Any:
    operation = getattr(copying, name)

    @numba.njit
    def run(target: Any, source: Any, count: Any) -> None:
        operation(target, source, count)

    return run


COMPILED = {name: compiled(name) for name in NAMES}
SIZES = sorted({*range(40), *(base + more for base in (64, 128, 256, 1024) for more in (-1, 0, 1, 33))})


def moved(build: Any, size: int) -> None:
    """Copy from the very end of one buffer into the middle of another."""
    source = np.arange(1, size + 1, dtype=np.uint64).astype(np.uint8)
    target = np.zeros(size + 2 * MARGIN, np.uint8)
    with guard.registered(source, target):
        build(np.uintp(target.ctypes.data + MARGIN), np.uintp(source.ctypes.data), np.uintp(size))
    assert target[MARGIN : MARGIN + size].tobytes() == source.tobytes()
    assert not target[:MARGIN].any() and not target[MARGIN + size :].any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_every_size_is_copied_to_the_byte(name: str, size: int) -> None:
    moved(COMPILED[name], size)


@given(name=st.sampled_from(NAMES), size=st.integers(0, 1100))
def test_the_checked_build_sees_no_access_outside(name: str, size: int) -> None:
    moved(getattr(CHECKED, name), size)
