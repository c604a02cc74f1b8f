"""Pools that have their threads from the start."""

from __future__ import annotations

import threading

import pytest

from headwater.errors import StorageError
from headwater.node.process.threads import Inline, pool, pool_or_inline


def running(name: str) -> int:
    """How many threads of a pool run; those of others end when they like."""
    return sum(each.name.startswith(f"{name}_") for each in threading.enumerate())


def test_all_threads_of_a_pool_run_before_it_has_work() -> None:
    with pool(3, "three") as made:
        assert running("three") == 3
        assert made.submit(threading.current_thread).result().name.startswith("three")
        assert running("three") == 3


def test_a_pool_that_can_not_have_all_its_threads_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    before, start, left = threading.active_count(), threading.Thread.start, [2]

    def sparse(thread: threading.Thread) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", sparse)
    with pytest.raises(StorageError, match="no thread to be had for test"):
        pool(3, "test")
    assert threading.active_count() == before
    assert isinstance(pool_or_inline(1, "test"), Inline)


def test_work_done_at_once_gives_its_result_or_its_error() -> None:
    with Inline() as made:
        assert made.submit(divmod, 7, 2).result() == (3, 1)
        with pytest.raises(ZeroDivisionError):
            made.submit(divmod, 7, 0).result()
