"""Rounds over sockets: the compiled kernel and the checked one stop, answer and keep alike.

What clients get by them, beside what they get without: tests/node/kv/test_rounds.py.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.kernels import execute
from headwater.kernels import rounds as kernel
from headwater.kernels.builds import debug_copy
from headwater.kernels.guard import registered
from headwater.kernels.json import SCRATCH_BYTES
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from tests.kernels.test_execute import _columns, _set
from tests.node.support import Desk

checked = debug_copy("headwater.kernels.rounds")
CLIENTS = 3
ALL = 0xFFFF
GET = Frame(0x80, Opcode.GET, b"k", opaque=3).encode()
NOOP = Frame(0x80, Opcode.NOOP).encode()


class Rig:
    """Sockets, a store, and the arrays of rounds, driven without a node."""

    def __init__(self, desk: Desk, build: ModuleType) -> None:
        self.desk, self.build = desk, build
        self.pairs = [socket.socketpair() for _ in range(CLIENTS)]
        for each in (end for pair in self.pairs for end in pair):
            each.setblocking(False)
        self.numbers = [ours.fileno() for ours, _ in self.pairs]
        self.members = np.zeros((max(self.numbers) + 1, kernel.MEMBER_FIELDS), np.uint64)
        self.turn = np.zeros(kernel.TURN_FIELDS, np.uint64)
        self.entries = np.zeros((kernel.KEPT, kernel.ENTRY_FIELDS), np.uint64)
        self.kept = np.zeros(kernel.KEPT * kernel.KEPT_BYTES, np.uint8)
        self.arena, self.out = np.zeros(1 << 16, np.uint8), np.zeros(1 << 16, np.uint8)
        self.state = np.zeros(execute.STATE_FIELDS, np.uint64)
        self.turn[kernel.OPEN_GATE], self.turn[kernel.MASK] = 5, ALL
        for number in self.numbers:
            self.members[number, kernel.READY] = kernel.IS_READY | int(execute.FEATURE_WRITE)
        for vb in range(4):
            desk.store.staging.grow(vb)

    def send(self, who: int, data: bytes) -> None:
        self.pairs[who][1].send(data)

    def round(self, *who: int) -> int:
        """Go round these clients; the gate of reads goes on from the last round."""
        desk, store, state, turn = self.desk, self.desk.store, self.state, self.turn
        desk.bucket.refresh()
        desk.bucket.collections.refresh()
        arena, used = store.staging.room()
        state[execute.ARENA], state[execute.STAGED], state[execute.LIMIT] = store.staging.slot, used, len(arena)
        state[execute.NOW_NS], state[execute.NOW] = desk.clock.time_ns(), desk.bucket.now()
        events = np.array([self.numbers[each] for each in who], np.uint64)
        turn[kernel.AT], turn[kernel.COUNT] = 0, len(events)
        columns = [column for vb in range(4) for column in _columns(desk, vb)]
        with registered(arena, *columns):
            stop = self.build.go_round(
                events, self.members, self.arena, self.out, store.table, store.segments, desk.bucket.uuids,
                desk.bucket.collections.plain, np.zeros(SCRATCH_BYTES, np.uint8), state, turn, self.entries, self.kept,
            )  # fmt: skip
        store.staging.use(int(state[execute.STAGED]))
        return int(stop)

    def release(self, durable: int) -> int:
        self.turn[kernel.DURABLE] = durable
        return int(self.build.release(self.members, self.turn, self.entries, self.kept))

    def heard(self) -> list[bytes]:
        found = []
        for _, theirs in self.pairs:
            try:
                found.append(theirs.recv(1 << 20))
            except BlockingIOError:
                found.append(b"")
        return found

    def said(self) -> list[int]:
        """All that a round tells its caller, but for the clients' descriptors."""
        fields = self.turn.copy()
        fields[kernel.WHO] = self.numbers.index(int(fields[kernel.WHO])) if fields[kernel.WHO] in self.numbers else 99
        waiting = [int(self.members[number, kernel.WAITING]) for number in self.numbers]
        return [*map(int, fields), *waiting, *map(int, self.state[execute.OFFSET : execute.GETS])]


@contextmanager
def rig(build: ModuleType = kernel) -> Iterator[Rig]:
    with TemporaryDirectory() as folder:
        desk = Desk(Path(folder))
        made = Rig(desk, build)
        try:
            yield made
        finally:
            for each in (end for pair in made.pairs for end in pair):
                each.close()
            desk.close()


sent = st.sampled_from(
    [GET, GET, _set(b"k", b"v"), _set(b"k", b"w" * 300), _set(b"q", b"v", Opcode.SETQ), NOOP, GET + _set(b"k", b"x"),
     Frame(0x80, Opcode.VERSION).encode(), NOOP[:7], GET + GET[:30], Frame(0x80, Opcode.DELETE, b"k").encode()]
)  # fmt: skip
steps = st.one_of(
    st.tuples(st.just("send"), st.integers(0, CLIENTS - 1), sent),
    st.tuples(st.just("round")),
    st.tuples(st.just("release"), st.sampled_from([4, 5, 9])),
)


def transcript(build: ModuleType, story: list[tuple[object, ...]]) -> list[object]:
    told: list[object] = []
    with rig(build) as made:
        for step in story:
            if step[0] == "send":
                made.send(*step[1:])  # type: ignore[arg-type]
            elif step[0] == "release":
                told.append(made.release(step[1]))  # type: ignore[arg-type]
            else:
                told.append(made.round(*range(CLIENTS)))
            told.append((made.said(), made.heard()))
    return told


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=15))
def test_both_builds_do_the_same(story: list[tuple[object, ...]]) -> None:
    assert transcript(kernel, story) == transcript(checked, story)


def test_what_shows_nothing_new_is_answered_at_once_and_a_change_is_kept_until_its_batch() -> None:
    with rig() as made:
        made.send(0, NOOP)
        made.send(1, _set(b"k", b"v"))
        made.send(2, GET)
        assert made.round(0, 1, 2) == kernel.ROUND_DONE
        noop, *rest = made.heard()
        assert noop[:8].hex() == "810a000000000000" and rest == [b"", b""]
        assert (made.release(4), made.heard()) == (kernel.ROUND_DONE, [b""] * 3)
        made.release(5)
        _, stored, found = made.heard()
        assert (stored[:8].hex(), found[:8].hex()) == ("8101000000000000", "8100000004000000")


def test_the_next_request_of_who_waits_is_for_python() -> None:
    with rig() as made:
        made.send(0, _set(b"k", b"v"))
        made.round(0)
        made.send(0, GET)
        assert made.round(0) == kernel.ROUND_ASK and made.turn[kernel.WHO] == made.numbers[0]


def test_an_answer_that_was_taken_back_is_not_sent() -> None:
    with rig() as made:
        made.send(0, _set(b"k", b"v"))
        made.round(0)
        made.members[made.numbers[0], kernel.WAITING] = 0
        assert (made.release(5), made.heard()) == (kernel.ROUND_DONE, [b""] * 3)
        assert made.turn[kernel.HEAD] == made.turn[kernel.TAIL] == 1


def test_a_descriptor_beyond_the_table_and_one_that_nobody_has_are_for_python() -> None:
    with rig() as made:
        made.members = made.members[: made.numbers[1]].copy()
        assert made.round(1) == kernel.ROUND_ASK
        made.members[made.numbers[0], kernel.READY] = 0
        made.send(0, NOOP)
        assert made.round(0) == kernel.ROUND_ASK and made.turn[kernel.RECEIVED] == 0


def test_the_end_of_a_connection_is_for_python() -> None:
    with rig() as made:
        made.pairs[0][1].close()
        assert made.round(0) == kernel.ROUND_ASK


def test_after_much_was_received_others_may_have_their_turn() -> None:
    with rig() as made:
        many = NOOP * (made.arena.size // len(NOOP))
        made.pairs[0][1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * len(many))
        made.send(0, many)
        made.send(1, NOOP)
        made.turn[kernel.MASK] = ALL
        assert len(many) >= kernel.PAUSE_BYTES - len(NOOP)
        made.send(2, GET)
        assert made.round(0, 2, 1) == kernel.ROUND_PAUSE
        assert made.turn[kernel.AT] == 2 and made.heard()[1] == b""
        assert made.round(1) == kernel.ROUND_DONE and made.heard()[1] != b""


@pytest.mark.parametrize("spoiled", ["members", "turn", "entries", "kept"])
def test_arrays_of_other_shapes_are_not_touched(spoiled: str) -> None:
    with rig() as made:
        made.send(0, NOOP)
        array = getattr(made, spoiled)
        if spoiled in {"members", "entries"}:
            setattr(made, spoiled, np.zeros((len(array), 5), np.uint64))
        else:
            setattr(made, spoiled, np.concatenate([array, array[:1]]))
        assert made.round(0) == kernel.ROUND_DONE and made.heard() == [b""] * 3
        assert made.release(9) == kernel.ROUND_DONE
