"""kill -9 of a real process at every named place and at random times: nothing promised is lost, nothing invented."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from headwater.node.storage.disk import RealDisk
from tests.battery import few_of
from tests.node.storage.model import History, check_documents, check_view, open_store
from tests.node.storage.writers import Writers

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


@pytest.fixture(scope="module")
def writers() -> Iterator[Writers]:
    with Writers() as begun:
        yield begun


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "store"
    made.mkdir()
    return made


def write_until_killed(
    writers: Writers, folder: Path, seed: int, points: str, deadline_seconds: float | None = None
) -> tuple[int, list[str]]:
    """Run the writer; (exit status, its lines). With a deadline it is killed then, wherever it is."""
    told = folder.with_name("told")
    status = writers.run(folder, seed, points, told, deadline_seconds)
    # A line cut off by the kill was not printed whole, so what it announces was not begun.
    return status, [line.rstrip("\n") for line in told.read_text().splitlines(keepends=True) if line.endswith("\n")]


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
@pytest.mark.parametrize("seed", few_of([1, 2], 1))
def test_a_kill_at_each_place_in_turn_loses_nothing(writers: Writers, folder: Path, seed: int) -> None:
    """One store goes through all of the kills, each at a later pass."""
    random, state, killed = Random(seed), {vb: History() for vb in range(4)}, 0
    for turn, point in enumerate(random.sample(POINTS, len(POINTS))):
        later = random.randint(1, 30) if point.startswith("log") else random.randint(1, 3)
        code, lines = write_until_killed(writers, folder, seed * 1000 + turn, f"{point}=kill@{later}")
        assert code == -signal.SIGKILL, (point, lines[-1:])
        killed += 1
        state = what_is_there(folder, *follow(state, lines))
    assert killed == len(POINTS)
    names = {path.name for path in folder.iterdir()}
    assert {"LOCK", "MANIFEST"} < names
    assert not any(name.endswith(".new") for name in names)


@pytest.mark.slow
def test_a_kill_while_recovering_from_a_kill_loses_nothing(writers: Writers, folder: Path) -> None:
    state = {vb: History() for vb in range(4)}
    for turn in range(3):
        _, lines = write_until_killed(writers, folder, turn, "log.before_sync=kill@9")
        for _ in range(5):
            assert write_until_killed(writers, folder, turn, "recover.indexed=kill") == (-signal.SIGKILL, [])
        state = what_is_there(folder, *follow(state, lines))


@pytest.mark.slow
def test_kills_at_any_time_lose_nothing(writers: Writers, folder: Path) -> None:
    random, state, lives = Random(3), {vb: History() for vb in range(4)}, 0
    for turn in range(20):
        deadline = random.uniform(0.1, 0.5) + turn / 4  # on a busy machine the first ones end before they write
        _, lines = write_until_killed(writers, folder, 77 + turn, "", deadline_seconds=deadline)
        state = what_is_there(folder, *follow(state, lines))
        lives += any(history.changes for history in state.values())
        if lives == 3:
            return
    raise AssertionError("the writer wrote nothing in any of its lives")


def test_a_writer_that_is_left_alone_ends_in_order(writers: Writers, folder: Path) -> None:
    code, lines = write_until_killed(writers, folder, 5, "")
    assert (code, lines[-1]) == (0, "closed")
    promised, possible = follow({vb: History() for vb in range(4)}, lines)
    assert what_is_there(folder, promised, possible) == promised
