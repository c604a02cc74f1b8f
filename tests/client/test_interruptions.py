"""A drain that is cancelled or interrupted anywhere returns every change once, in this drain or in the next one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater
from headwater.client import Client, Mutation, aio, blocking
from headwater.errors import LocalProtocolError
from headwater.testing.peers import Peer, history, serve
from headwater.transport import aio as loops
from headwater.transport import blocking as threads

SOURCES = str(Path(headwater.__file__).parent)
VBUCKETS, CHANGES = 3, 40
EXPECTED = sorted((vb, seqno) for vb in range(VBUCKETS) for seqno in range(1, CHANGES + 1))
FORMS = ["batches", "changes"]

Places = list[tuple[int, int]]


@contextmanager
def cutting_peer(cuts: list[int]) -> Iterator[str]:
    """A node that closes connections after so many bytes; the first one, of the client itself, it leaves alone."""
    peer = Peer(VBUCKETS, {vb: history(CHANGES) for vb in range(VBUCKETS)}, cuts=[1 << 30, *cuts])
    with serve(peer) as address:
        yield address


def places(found: Any) -> Places:
    """The changes in a batch, or the one that an event is."""
    if isinstance(found, Mutation):
        return [(found.vbucket, found.seqno)]
    if not hasattr(found, "records"):
        return []
    return list(zip(*(found.records.column(name).to_pylist() for name in ("vbucket", "seqno")), strict=True))


class Cancelled:
    """Raises when its turn has come: the nth call does, for each n that was drawn."""

    def __init__(self, gaps: list[int], error: type[BaseException]) -> None:
        self._gaps, self._left, self._error = iter(gaps), 0, error
        self._left = next(self._gaps, -1)

    def __call__(self) -> None:
        self._left -= 1
        if self._left == -1:
            self._left = next(self._gaps, -1)
            raise self._error


def raising(before: Callable[..., Any], turn: Cancelled) -> Callable[..., Any]:
    def called(*arguments: object) -> object:
        turn()
        return before(*arguments)

    return called


gaps = st.lists(st.integers(0, 6), max_size=12)
cuts = st.lists(st.integers(200, 4000), max_size=3)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=30)
@given(gaps, cuts)
def test_a_task_that_is_cancelled_at_any_wait_goes_on_and_has_every_change_once(
    form: str, gaps: list[int], cuts: list[int]
) -> None:
    turn = Cancelled(gaps, asyncio.CancelledError)

    async def drain(address: str) -> Places:
        found: Places = []
        async with aio.connect(address) as client:
            feed = await getattr(client, form)(until="now", batch_bytes=600)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(loops.Waiters, "_wait", raising(loops.Waiters._wait, turn))
                patched.setattr(loops, "resolve", raising(loops.resolve, turn))
                while True:
                    try:
                        found += places(await anext(feed))
                    except asyncio.CancelledError:
                        continue
                    except StopAsyncIteration:
                        break
            assert {vb: place.seqno for vb, place in feed.positions.items()} == dict.fromkeys(range(VBUCKETS), CHANGES)
            feed.close()
        return found

    with cutting_peer(cuts) as address:
        assert sorted(asyncio.run(drain(address))) == EXPECTED


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=30)
@given(gaps, cuts)
def test_a_thread_that_is_interrupted_at_any_wait_goes_on_and_has_every_change_once(
    form: str, gaps: list[int], cuts: list[int]
) -> None:
    turn, found = Cancelled(gaps, KeyboardInterrupt), Places()
    with (
        cutting_peer(cuts) as address,
        blocking.connect(address) as client,
        getattr(client, form)(until="now", batch_bytes=600) as feed,
        pytest.MonkeyPatch.context() as patched,
    ):
        patched.setattr(threads, "wait", raising(threads.wait, turn))
        patched.setattr(threads, "resolve", raising(threads.resolve, turn))
        while True:
            try:
                found += places(next(feed))
            except KeyboardInterrupt:
                continue
            except StopIteration:
                break
    assert sorted(found) == EXPECTED


class Interrupting:
    """Raises KeyboardInterrupt in the nth line of headwater's own code that runs, as a signal does, which comes
    anywhere; lines count from the first one of a function of the name `since`, if one is given."""

    def __init__(self, lines: int, since: str | None = None) -> None:
        self.left = lines
        self.place = ""
        self._since = since

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCES):
            return None
        if frame.f_code.co_name == self._since:
            self._since = None
        if event == "line" and self._since is None:
            self.left -= 1
            if self.left == 0:
                self.place = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                raise KeyboardInterrupt
        return self


NEVER = -1


@contextmanager
def tracing(interrupting: Interrupting) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(interrupting)
    try:
        yield
    finally:
        sys.settrace(before)


def read_on(client: Client, form: str, start: Any, interrupts: Iterator[Interrupting], found: Places) -> Any:
    """Read to the end, through interrupts; returns None then, else the positions to begin again at."""
    with getattr(client, form)(start, until="now", batch_bytes=600) as feed:
        while True:
            try:
                with tracing(next(interrupts, Interrupting(NEVER))):
                    got = feed.__next__()
                found += places(got)
            except KeyboardInterrupt:
                continue
            except StopIteration:
                return None
            except LocalProtocolError as error:
                assert "begin another one at its positions" in str(error)
                return feed.positions


async def read_on_in_a_task(
    client: aio.AsyncClient, form: str, start: Any, interrupts: Iterator[Interrupting], found: Places
) -> Any:
    with await getattr(client, form)(start, until="now", batch_bytes=600) as feed:
        while True:
            try:
                with tracing(next(interrupts, Interrupting(NEVER))):
                    got = await feed.__anext__()
                found += places(got)
            except KeyboardInterrupt:
                continue
            except StopAsyncIteration:
                return None
            except LocalProtocolError as error:
                assert "begin another one at its positions" in str(error)
                return feed.positions


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a socket that was just being made
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=30)
@given(st.lists(st.integers(1, 4000), min_size=1, max_size=8))
def test_a_thread_that_is_interrupted_anywhere_loses_nothing_that_its_positions_cover(
    form: str, lines: list[int]
) -> None:
    found, start, interrupts = Places(), None, map(Interrupting, lines)
    with cutting_peer([]) as address, blocking.connect(address) as client:
        while (start := read_on(client, form, start, interrupts, found)) is not None:
            pass
    assert sorted(found) == EXPECTED


def in_each_line(calls: int, since: str) -> Iterator[tuple[Interrupting, Iterator[Interrupting]]]:
    """Interrupts for one reading after the other, until one finds no line left: the call after so many whole ones is
    interrupted in the first line of a function, in the line that runs next, and so on to its return."""
    for lines in count(1):
        last = Interrupting(lines, since)
        yield last, iter([*(Interrupting(NEVER) for _ in range(calls)), last])
        if last.left > 0:
            return


RETURNS = [("batches", 0, "_hand_out"), ("batches", 1, "_hand_out"), ("changes", 0, "_hand_out")]
"""The form, the calls before the one that is interrupted, and the function in which that begins."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt in a finalizer
@pytest.mark.parametrize(("form", "calls", "since"), [*RETURNS, ("changes", 1, "__next__"), ("changes", 2, "__next__")])
def test_a_thread_that_is_interrupted_in_any_line_of_a_return_has_every_change_once(
    form: str, calls: int, since: str
) -> None:
    with cutting_peer([]) as address, blocking.connect(address) as client:
        for interrupt, interrupts in in_each_line(calls, since):
            found, start = Places(), None
            while (start := read_on(client, form, start, interrupts, found)) is not None:
                pass
            assert sorted(found) == EXPECTED, interrupt.place


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt in a finalizer
@pytest.mark.parametrize(
    ("form", "calls", "since"), [*RETURNS, ("changes", 1, "__anext__"), ("changes", 2, "__anext__")]
)
def test_a_task_that_is_interrupted_in_any_line_of_a_return_has_every_change_once(
    form: str, calls: int, since: str
) -> None:
    async def read(address: str) -> None:
        async with aio.connect(address) as client:
            for interrupt, interrupts in in_each_line(calls, since):
                found, start = Places(), None
                while (start := await read_on_in_a_task(client, form, start, interrupts, found)) is not None:
                    pass
                assert sorted(found) == EXPECTED, interrupt.place

    with cutting_peer([]) as address:
        asyncio.run(read(address))
