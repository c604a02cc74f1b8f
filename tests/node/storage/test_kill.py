"""kill -9 of a real process at every named place and at random times: nothing promised is lost, nothing invented."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from headwater.node.storage.disk import RealDisk
from tests.node.storage.model import History, check_documents, check_view, open_store

POINTS = [
    "log.append",
    "log.before_sync",
    "log.after_sync",
    "segment.created",
    "segment.before_manifest",
    "segment.after_manifest",
    "compact.planned",
    "compact.copied",
    "compact.before_rename",
    "compact.after_rename",
    "compact.before_unlink",
    "rollback.staged",
]

State = dict[int, History]


def write_until_killed(
    folder: Path, seed: int, points: str, deadline_seconds: float | None = None
) -> tuple[int, list[str]]:
    """Run the writer; (exit status, its lines). With a deadline it is killed then, wherever it is."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.node.storage.writer", str(folder), str(seed)],
        env={**os.environ, "HEADWATER_FAILPOINTS": points},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        out, _ = process.communicate(timeout=deadline_seconds or 400)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        out, _ = process.communicate()
    # A line cut off by the kill was not printed whole, so what it announces was not begun.
    return process.returncode, [line.rstrip("\n") for line in out.splitlines(keepends=True) if line.endswith("\n")]


def follow(state: State, lines: list[str]) -> tuple[State, State]:
    """Return the documents that the lines promise, and those with the batch under way as well."""
    promised = {vb: history.copy() for vb, history in state.items()}
    possible = promised
    for line in lines:
        if line.startswith("try"):
            possible = {vb: history.copy() for vb, history in promised.items()}
            for entry in line.split("\t")[1:]:
                apply(possible, entry.split(" "))
        elif line == "done":
            promised = possible
    return promised, possible


def apply(state: State, entry: list[str]) -> None:
    if entry[0] == "back":
        history, seqno = state[int(entry[1])], int(entry[2])
        history.keep(seqno, seqno)
    else:
        vb, seqno, key, value = entry
        state[int(vb)].add(int(seqno), key.encode(), None if value == "-" else value.encode())


def what_is_there(folder: Path, promised: State, possible: State) -> State:
    """The state the store is in, which must be one of the two; opening it changes nothing of that."""
    store = open_store(RealDisk(), vbuckets=4, path=folder, arena_bytes=1 << 16)
    try:
        problems: list[Exception] = []
        for state in (possible, promised):
            try:
                for vb, history in state.items():
                    check_documents(store, vb, history)
                    check_view(store, vb, history)
            except AssertionError as problem:
                problems.append(RuntimeError(str(problem)))
            else:
                return state
        raise ExceptionGroup("neither what was promised is there, nor what was under way as well", problems)
    finally:
        store.close(clean=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_kill_at_each_place_in_turn_loses_nothing(tmp_path: Path, seed: int) -> None:
    """One store goes through all of the kills, each at a later pass."""
    random, state, killed = Random(seed), {vb: History() for vb in range(4)}, 0
    for turn, point in enumerate(random.sample(POINTS, len(POINTS))):
        later = random.randint(1, 30) if point.startswith("log") else random.randint(1, 3)
        code, lines = write_until_killed(tmp_path, seed * 1000 + turn, f"{point}=kill@{later}")
        assert code == -signal.SIGKILL, (point, lines[-1:])
        killed += 1
        state = what_is_there(tmp_path, *follow(state, lines))
    assert killed == len(POINTS)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"LOCK", "MANIFEST"} < names
    assert not any(name.endswith(".new") for name in names)


@pytest.mark.slow
def test_a_kill_while_recovering_from_a_kill_loses_nothing(tmp_path: Path) -> None:
    state = {vb: History() for vb in range(4)}
    for turn in range(3):
        _, lines = write_until_killed(tmp_path, turn, "log.before_sync=kill@9")
        for _ in range(5):
            assert write_until_killed(tmp_path, turn, "recover.indexed=kill") == (-signal.SIGKILL, [])
        state = what_is_there(tmp_path, *follow(state, lines))


@pytest.mark.slow
def test_kills_at_any_time_lose_nothing(tmp_path: Path) -> None:
    random, state, lives = Random(3), {vb: History() for vb in range(4)}, 0
    for turn in range(20):
        deadline = random.uniform(0.6, 1.6) + turn  # on a busy machine the first ones end before anything is written
        _, lines = write_until_killed(tmp_path, 77 + turn, "", deadline_seconds=deadline)
        state = what_is_there(tmp_path, *follow(state, lines))
        lives += any(history.changes for history in state.values())
        if lives == 3:
            return
    raise AssertionError("the writer wrote nothing in any of its lives")


def test_a_writer_that_is_left_alone_ends_in_order(tmp_path: Path) -> None:
    code, lines = write_until_killed(tmp_path, 5, "")
    assert (code, lines[-1]) == (0, "closed")
    promised, possible = follow({vb: History() for vb in range(4)}, lines)
    assert what_is_there(tmp_path, promised, possible) == promised
