"""The lines that tell of compiling. That kernels are compiled once: tests/kernels/test_jit.py."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwater.kernels import cached, jit
from headwater.kernels.cached import Compiling


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_first_kernel_tells_why_nothing_happens_and_every_five_seconds_how_far_it_is() -> None:
    clock, lines = Clock(), list[str]()
    told = Compiling(lines.append, clock)
    for now in (10.0, 12.0, 15.0, 16.0, 21.0):
        clock.now = now
        told.begin("/cache")
    assert lines == [
        "compiling kernels for this machine, once; it takes half a minute or so. They are kept in /cache",
        "2 kernels compiled in 5 s",
        "4 kernels compiled in 11 s",
    ]


def test_where_nothing_can_be_kept_the_reason_is_told() -> None:
    lines = list[str]()
    told = Compiling(lines.append)
    told.remark = " (/proc/nope: Not a directory)"
    told.begin("")
    assert lines[0].endswith("They can't be kept, so each start takes as long (/proc/nope: Not a directory)")


def test_a_closed_stderr_is_no_matter() -> None:
    def closed(line: str) -> None:
        raise ValueError("I/O operation on closed file")

    Compiling(closed).begin("/cache")


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jit, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(jit._KernelLocator, "folder", str(tmp_path))


def plus(number: int, or_else: Callable[..., Any] | None = None) -> Any:
    """A kernel of a test."""
    function: Any = lambda n: n + number  # noqa: E731 - numba wants one of its own
    return jit.kernel(function) if or_else is None else jit.kernel_or(or_else, function)


def minus_one(n: object) -> int:
    return -1


@pytest.mark.usefixtures("empty_cache")
def test_who_only_looks_compiles_nothing_and_is_told() -> None:
    built = plus(1)
    with cached.looking(), pytest.raises(cached.NotCompiled):
        built(np.int64(1))
    assert built(np.int64(1)) == 2
    with cached.looking():
        assert built(np.int64(1)) == 2


@pytest.mark.usefixtures("empty_cache")
def test_something_stands_in_for_a_kernel_until_it_is_compiled_and_only_where_a_node_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = plus(1, minus_one)
    monkeypatch.setattr(cached, "serving", True)
    assert [built(np.int64(1)), built(np.int64(2))] == [-1, -1]
    assert not built.signatures
    with cached.building():
        assert built(np.int64(1)) == 2
    assert built(np.int64(2)) == 3
    assert plus(10, minus_one)(np.float64(1)) == -1
    monkeypatch.setattr(cached, "serving", False)
    assert plus(20, minus_one)(np.int64(1)) == 21


@pytest.mark.usefixtures("empty_cache")
def test_who_serves_waits_for_no_other_process_that_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    built = plus(30)
    lock = Path(built._cache.cache_path, f"{built._cache._impl.filename_base}.lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        monkeypatch.setattr(cached, "serving", True)
        monkeypatch.setattr(jit.time, "sleep", lambda seconds: pytest.fail("it waits"))  # type: ignore[attr-defined]
        assert built(np.int64(1)) == 31


def test_where_nothing_can_be_kept_that_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = list[str]()
    monkeypatch.setattr(cached, "compiling", Compiling(lines.append))
    kept_nowhere = jit._Unkept()
    with cached.looking(), pytest.raises(cached.NotCompiled):
        kept_nowhere.load_overload(None, None)
    assert lines == []
    kept_nowhere.load_overload(None, None)
    assert "They can't be kept" in lines[0]
