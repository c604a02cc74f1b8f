"""The index kernels against a dict, and against the checked build."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.kernels import history, index
from headwater.kernels.builds import debug_copy, kernel
from headwater.kernels.guard import KernelFault, register
from headwater.node.storage.columns import Index
from headwater.node.storage.records import deletion_frame, mutation_frame

keys = st.one_of(st.binary(min_size=1, max_size=3), st.sampled_from([b"k" * 250, b"k" * 249 + b"l"]))
changes = st.lists(st.tuples(keys, st.booleans(), st.binary(max_size=9)), max_size=60)


@kernel
def hash_of(data: Any) -> Any:
    return index.siphash13(np.uintp(0), np.uintp(0), np.uintp(data.ctypes.data), np.uintp(len(data)))


def test_the_hash_is_siphash_1_3_as_python_itself_has_it() -> None:
    texts = [bytes(range(length)) for length in range(1, 70)]
    ask = f"print([hash(text) & 0xFFFFFFFFFFFFFFFF for text in {texts!r}])"
    told = subprocess.run([sys.executable, "-c", ask], env={"PYTHONHASHSEED": "0"}, capture_output=True, check=True)
    assert [int(hash_of(np.frombuffer(text, np.uint8))) for text in texts] == eval(told.stdout)


class Small:
    """One vbucket with its frames in one arena; `model` is its versions by key, newest last."""

    def __init__(self, seeds: tuple[int, int] = (1, 2)) -> None:
        self.index = Index(1, seeds)
        self.arena = np.zeros(1 << 16, np.uint8)
        self.segments = np.zeros((4, 2), np.uint64)
        self.segments[0] = (self.arena.ctypes.data, len(self.arena))
        self.used = 0
        self.log: list[tuple[bytes, bytes | None]] = []

    @property
    def table(self) -> Any:
        return self.index.table

    def add(self, key: bytes, value: bytes | None) -> None:
        numbers = {"seqno": len(self.log) + 1, "cas": 9, "rev_seqno": 1}
        frame = (
            deletion_frame(0, key, delete_time=1, **numbers)
            if value is None
            else mutation_frame(0, key, value, **numbers)
        )
        self.arena[self.used : self.used + len(frame)] = np.frombuffer(frame, np.uint8)
        while not index.index_frame(self.table, 0, self.segments, 0, self.used):
            self.index.grow(0)
        self.used += len(frame)
        self.log.append((key, value))

    def check(self, gone: set[bytes]) -> None:
        newest = {key: row for row, (key, _) in enumerate(self.log)}
        for key, row in newest.items():
            assert index.lookup(self.table, 0, self.segments, np.frombuffer(key, np.uint8), 0) == row
        for key in gone - set(newest):
            assert index.lookup(self.table, 0, self.segments, np.frombuffer(key, np.uint8), 0) == -1
        row, columns = self.table[0], self.index.columns[0]
        frames = {
            key: 55 + len(key) + len(self.log[at][1] or b"") - (10 if self.log[at][1] is None else 0)
            for key, at in newest.items()
        }
        assert row[index.ROWS] == len(self.log)
        assert row[index.KEYS] == len(newest)
        assert row[index.ITEMS] == sum(self.log[at][1] is not None for at in newest.values())
        assert row[index.LIVE_BYTES] == sum(frames.values())
        for at, (key, _) in enumerate(self.log):
            later = [other for other in range(at + 1, len(self.log)) if self.log[other][0] == key]
            assert columns.next[at] == (later[0] if later else 0xFFFFFFFF)


@given(changes)
def test_every_key_is_found_at_its_newest_row_whatever_came_before(changes: list[tuple[bytes, bool, bytes]]) -> None:
    small = Small()
    for key, kept, value in changes:
        small.add(key, value if kept else None)
    small.check({b"never"})


@given(changes, st.lists(st.integers(0, 60), max_size=4))
def test_taking_rows_back_brings_the_versions_before_them_back(
    changes: list[tuple[bytes, bool, bytes]], cuts: list[int]
) -> None:
    small, gone = Small(), {key for key, _, _ in changes}
    for cut in [*cuts, 0]:
        for key, kept, value in changes:
            small.add(key, value if kept else None)
        keep = min(cut, len(small.log))
        history.undo_rows(small.table, 0, small.segments, keep)
        del small.log[keep:]
        small.check(gone)


@given(st.integers(0, 200), st.integers(0, 3))
@settings(max_examples=20)
def test_growing_copying_and_shrinking_change_nothing(count: int, step: int) -> None:
    small = Small()
    for number in range(count):
        small.add(b"%d" % (number % 70), b"v")
        if number % 13 == step:
            (small.index.fit, small.index.fork, lambda vb: small.index.grow(vb, 50, 50))[number % 3](0)
    small.index.fit(0)
    small.check(set())


def test_two_stores_place_the_same_keys_differently() -> None:
    first, second = Small((1, 2)), Small((3, 4))
    for small in (first, second):
        for number in range(40):
            small.add(b"%d" % number, b"")
    assert list(first.index.columns[0].hash[:40]) != list(second.index.columns[0].hash[:40])


@contextmanager
def checked() -> Iterator[Any]:
    yield debug_copy("headwater.kernels.index")


def test_the_checked_build_agrees_and_faults_on_a_place_outside_the_arena() -> None:
    small = Small()
    for number in range(30):
        small.add(b"%d" % (number % 20), b"value")
    columns = small.index.columns[0]
    for array in (columns.block, columns.slots, small.arena):
        register(array)
    with checked() as build:
        for number in range(25):
            key = np.frombuffer(b"%d" % number, np.uint8)
            there = index.lookup(small.table, 0, small.segments, key, 0)
            assert build.lookup(small.table, 0, small.segments, key, 0) == there
        columns.loc[29] += np.uint64(1 << 20)
        with pytest.raises(KernelFault):
            build.lookup(small.table, 0, small.segments, np.frombuffer(b"9", np.uint8), 0)


def test_a_whole_run_of_the_store_touches_nothing_it_should_not() -> None:
    code = """
from headwater.kernels.builds import debugging
from headwater.testing.faults import FaultyDisk
from tests.node.storage.model import filled, open_store
from tests.node.storage.test_every_call import Run
disk = FaultyDisk()
Run(disk).everything()
again = Run(disk)
store = open_store(disk)
with store.view(0) as view:
    print(debugging(), len(filled(view)) > 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HEADWATER_DEBUG_KERNELS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True True\n", done.stderr
