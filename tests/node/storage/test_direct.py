"""Bytes written past the page cache are in the file, and in its map, as if they had gone through it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.node.storage.direct import BLOCK_BYTES, BUFFER_BYTES, DirectWriter
from headwater.node.storage.disk import RealDisk

FILE_BYTES = 4 << 20
PLACES = st.integers(0, 3 * BLOCK_BYTES)
SIZES = st.one_of(st.integers(0, 3 * BLOCK_BYTES), st.integers(BUFFER_BYTES - 2, BUFFER_BYTES + BLOCK_BYTES))


@given(writes=st.lists(st.tuples(PLACES, SIZES, SIZES, st.booleans()), max_size=6), look=st.booleans())
def test_any_mixture_of_both_ways_leaves_what_was_written_last(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, int, int, bool]], look: bool
) -> None:
    path = tmp_path_factory.mktemp("direct") / "f"
    file = RealDisk().create(path, FILE_BYTES)
    mapped, expected = file.map(), bytearray(FILE_BYTES)
    for number, (offset, first, second, unread) in enumerate(writes, 1):
        buffers = [bytes([number]) * first, memoryview(bytes([100 + number]) * second)]
        if look:
            assert int(mapped[offset]) == expected[offset]  # its page is in the cache now
        file.write(buffers, offset, is_unread=unread)
        expected[offset : offset + first + second] = b"".join(buffers)
        assert np.array_equal(mapped, np.frombuffer(expected, np.uint8))
    file.sync()
    assert path.read_bytes() == expected
    file.close()
    path.unlink()


@pytest.fixture
def descriptor(tmp_path: Path) -> int:
    return os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)


def test_a_file_system_that_can_not_do_it_is_asked_once(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def refuse(descriptor: int, data: bytes, offset: int) -> int:
        calls.append(offset)
        raise OSError(errno.EINVAL, "not here")

    monkeypatch.setattr(os, "pwrite", refuse)
    writer = DirectWriter(descriptor)
    data = memoryview(bytes(BLOCK_BYTES))
    assert (writer.write(data, 0), writer.write(data, BLOCK_BYTES), calls, writer.works) == (0, 0, [0], False)


def test_a_disk_that_fails_is_heard_of(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(OSError, match="broken"):
        DirectWriter(descriptor).write(memoryview(bytes(BLOCK_BYTES)), 0)


@pytest.mark.parametrize(("size", "offset"), [(BLOCK_BYTES - 1, 0), (BLOCK_BYTES, 1), (0, 0)])
def test_what_is_no_whole_block_goes_the_other_way(descriptor: int, size: int, offset: int) -> None:
    assert DirectWriter(descriptor).write(memoryview(bytes(size)), offset) == 0


def test_whole_blocks_go_as_far_as_the_buffer_reaches(descriptor: int) -> None:
    writer = DirectWriter(descriptor)
    assert writer.write(memoryview(bytes(BUFFER_BYTES + 1)), 0) in (BUFFER_BYTES, 0 if not writer.works else -1)
    assert writer.write(memoryview(bytes(2 * BLOCK_BYTES + 5)), 0) in (2 * BLOCK_BYTES, 0 if not writer.works else -1)
