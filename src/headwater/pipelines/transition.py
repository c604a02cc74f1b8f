"""The transition: a job that hands vbuckets of some nodes over to others, one by one.

    headwater transition --from a:11210 --to b:11210 --to c:11210 --journal ./expansion

A batch is some vbuckets of each pair of nodes. A task moves the vbuckets of one pair, one task per pair, since two
movers of a pair would end each other's connections (cluster/mover.py); all changes of these vbuckets pass through it.
Then the driver checks both ends itself: the new owner is active and has the whole history that the old one had when it
became dead. Only then the move is noted in the journal.

The remaining work is looked up on the nodes, at each start and after each failure, and never in the journal. A vbucket
whose move a crash interrupted is found, and its move finished or begun anew, towards the same node as before.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.client.routing import read_map
from headwater.cluster.admin import Endpoint, NodeAdmin
from headwater.cluster.collections import refuse_strangers
from headwater.cluster.mover import Moved, Mover
from headwater.cluster.proxied import Limits
from headwater.cluster.transfer import AGAIN
from headwater.errors import ClusterError, HeadwaterError, MoveError, OptionError, TransportError
from headwater.failpoints import failpoint
from headwater.folders import make_folder
from headwater.pipelines.attempts import Attempts, attempts_of
from headwater.pipelines.jobs import Transition, TransitionProgress
from headwater.pipelines.ledger import BUSY_SECONDS, folder
from headwater.pipelines.local import Workers
from headwater.pipelines.query import session_of
from headwater.spark.history import BranchHistory
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE = "transition.sqlite3"
CONCURRENCY = 4
_SCHEMA = """
CREATE TABLE IF NOT EXISTS moves (
    vbucket INTEGER PRIMARY KEY, source TEXT NOT NULL, target TEXT NOT NULL, changes INTEGER NOT NULL,
    bytes INTEGER NOT NULL, seconds REAL NOT NULL, attempts INTEGER NOT NULL, ownerless_seconds REAL NOT NULL,
    high_seqno INTEGER NOT NULL, moved_at REAL NOT NULL
)
"""
_INSERT = """
INSERT OR REPLACE INTO moves VALUES (
    :vbucket, :source, :target, :changes, :bytes, :seconds, :attempts, :ownerless_seconds, :high_seqno, :moved_at
)
"""


@dataclass(frozen=True)
class TransitionTask:
    """Some vbuckets of one pair of nodes; it travels pickled to the process that runs it."""

    source: Endpoint
    target: Endpoint
    vbuckets: tuple[int, ...]
    patience_seconds: float
    concurrency: int = CONCURRENCY

    def answer(self) -> bytes:
        """Move the vbuckets to the target by takeover; return the results as JSON."""
        return json.dumps(asyncio.run(self._run())).encode()

    async def _run(self) -> dict[str, Any]:
        limits = Limits(patience_seconds=self.patience_seconds)
        async with Mover(self.source, self.target, concurrency=self.concurrency, limits=limits) as mover:
            # One that fails must not end the mover under the others: they are in the midst of their hand-overs.
            outcomes = await asyncio.gather(*map(mover.move, self.vbuckets), return_exceptions=True)
        errors = [
            _of_move(vb, each)
            for vb, each in zip(self.vbuckets, outcomes, strict=True)
            if isinstance(each, HeadwaterError)
        ]
        if bugs := [
            outcome
            for outcome in outcomes
            if isinstance(outcome, BaseException) and not isinstance(outcome, HeadwaterError)
        ]:
            raise bugs[0]
        failpoint("transition.moved")
        return {
            "moved": [asdict(outcome) for outcome in outcomes if isinstance(outcome, Moved)],
            "failed": [each.args for each in sorted(errors, key=lambda each: each.retriable)],
        }


def _of_move(vb: int, error: HeadwaterError) -> MoveError:
    """Return the failure of a move as a MoveError, which can be pickled and sent to the driver."""
    if isinstance(error, MoveError):
        return error
    return MoveError(vb, str(error), AGAIN, isinstance(error, TransportError) and error.retriable)


class MoveJournal:
    """The checked moves, a row each, in a SQLite file.

    Args:
        place: the folder, created if missing.
    """

    def __init__(self, place: str | Path) -> None:
        self.path: Path = Path(folder(place)) / FILE
        make_folder(self.path.parent)
        with closing(self._connected()) as base, base:
            base.execute("PRAGMA journal_mode=WAL")
            base.execute(_SCHEMA)

    def note(self, rows: Iterable[dict[str, Any]]) -> None:
        """Add rows; the last move of a vbucket replaces earlier ones."""
        with closing(self._connected()) as base, base:
            base.executemany(_INSERT, rows)

    def forget(self, vbuckets: Iterable[int]) -> None:
        """Remove the rows of vbuckets that are to be moved: a row says that the last move was checked, and this one is
        not yet.
        """
        with closing(self._connected()) as base, base:
            base.executemany("DELETE FROM moves WHERE vbucket = ?", [(vb,) for vb in vbuckets])

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows, by vbucket."""
        with closing(self._connected()) as base:
            base.row_factory = sqlite3.Row
            return [dict(row) for row in base.execute("SELECT * FROM moves ORDER BY vbucket")]

    def _connected(self) -> sqlite3.Connection:
        base = sqlite3.connect(self.path, timeout=BUSY_SECONDS)
        base.execute("PRAGMA synchronous=FULL")
        return base


@dataclass(frozen=True)
class NodePair:
    """A node that gives vbuckets and one that takes them."""

    source: Endpoint
    target: Endpoint

    @property
    def addresses(self) -> tuple[str, str]:
        """Their addresses, as the journal has them."""
        return str(self.source.address), str(self.target.address)


@dataclass(frozen=True)
class TransitionSurvey:
    """The vbuckets of a transition by the nodes' reports.

    Attributes:
        left: the vbuckets to be moved, by vbucket: from which node to which.
        moved: vbuckets that a target owns, and of which its source has a dead copy: from which node to which.
        ownerless: vbuckets of which a source has a dead copy, while no node has an active or pending one.
    """

    left: dict[int, NodePair] = field(default_factory=dict)
    moved: dict[int, NodePair] = field(default_factory=dict)
    ownerless: set[int] = field(default_factory=set)


class TransitionNodes:
    """The nodes of a transition, as the driver sees them.

    Args:
        sources: the nodes that give vbuckets. targets: the nodes that take them.
        vbuckets: the vbuckets to move; None for all that the sources own.

    Raises:
        OptionError: no source, no target, or a node that is named twice.
    """

    def __init__(
        self, sources: Sequence[Endpoint], targets: Sequence[Endpoint], vbuckets: Sequence[int] | None
    ) -> None:
        self.sources: list[Endpoint] = list(sources)
        self.targets: list[Endpoint] = list(targets)
        self.wanted: frozenset[int] | None = None if vbuckets is None else frozenset(vbuckets)
        addresses = [each.address for each in (*sources, *targets)]
        if not sources or not targets or len(set(addresses)) < len(addresses):
            names = ", ".join(map(str, addresses))
            raise OptionError("nodes", names, "at least one that gives and one that takes, each named once")

    async def look(self) -> TransitionSurvey:
        """Request the states of the vbuckets from all nodes.

        Raises:
            OptionError: a node is a member of a cluster; a vbucket has two owners, or is not there; collections
                contradict each other.
            HeadwaterError: a node does not answer, or refuses.
        """
        async with AsyncExitStack() as stack:
            vbuckets = [
                await stack.enter_async_context(await NodeAdmin.connect(each))
                for each in (*self.sources, *self.targets)
            ]
            for node in vbuckets:
                await _refuse_member(node)
            await _refuse_strangers(vbuckets[: len(self.sources)], vbuckets[len(self.sources) :])
            states = [await node.states() for node in vbuckets]
        return self._survey(states[: len(self.sources)], states[len(self.sources) :])

    def _survey(
        self, source_states: Sequence[dict[int, State]], target_states: Sequence[dict[int, State]]
    ) -> TransitionSurvey:
        survey = TransitionSurvey()
        present = {vb for states in (*source_states, *target_states) for vb in states}  # a target has what has moved
        if self.wanted and (beyond := sorted(self.wanted - present)):
            raise OptionError("vbuckets", beyond[0], f"of these nodes, which have {min(present)} to {max(present)}")
        for source, states in zip(self.sources, source_states, strict=True):
            for vb in filter(self.is_wanted, states):
                owners = [at for at, present in enumerate(target_states) if present.get(vb) is State.ACTIVE]
                pending_at = [at for at, present in enumerate(target_states) if present.get(vb) is State.PENDING]
                if len(owners) + (states[vb] is State.ACTIVE) + (vb in survey.left) > 1:
                    raise OptionError("nodes", f"vbucket {vb} has two owners", "nodes of which one owns it")
                if owners and states[vb] is State.DEAD:
                    survey.moved[vb] = NodePair(source, self.targets[owners[0]])
                elif states[vb] is State.ACTIVE or (states[vb] is State.DEAD and pending_at):
                    # A target with a pending copy goes on with it: another one would leave that half hand-over behind.
                    survey.left[vb] = NodePair(
                        source, self.targets[pending_at[0] if pending_at else vb % len(self.targets)]
                    )
                elif states[vb] is State.DEAD and all(state.get(vb) is not State.ACTIVE for state in source_states):
                    survey.ownerless.add(vb)
        return survey

    def is_wanted(self, vbucket: int) -> bool:
        """Return True if the vbucket is one of those to be moved."""
        return self.wanted is None or vbucket in self.wanted


async def _refuse_member(node: NodeAdmin) -> None:
    """Check that a node is not a member of a cluster: its map would undo a takeover that does not change the map.

    Raises:
        OptionError: it is a member.
    """
    config = await node.config()
    if config and len(read_map(config, node.address).servers) > 1:
        message = "a node that is no member of a cluster; there it is headwater cluster rebalance"
        raise OptionError("nodes", str(node.address), message)


async def _refuse_strangers(sources: Sequence[NodeAdmin], targets: Sequence[NodeAdmin]) -> None:
    """Check that the collections of all nodes are those of one bucket, since vbuckets bring their collections along.

    Raises:
        OptionError: they contradict each other.
    """
    for source in sources:
        for other in (*sources[:1], *targets):
            try:
                await refuse_strangers(source, other)
            except ClusterError as error:
                raise OptionError("nodes", error.problem, f"possible: {error.advice}") from None


async def judged(pair: NodePair, moves: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[MoveError]]:
    """Check both ends of moves; return the journal's rows, and the errors of those of which a target does not own the
    vbucket, or lacks some of its source's history.
    """
    source, target = pair.addresses
    rows, errors = [], []
    async with await NodeAdmin.connect(pair.source) as old, await NodeAdmin.connect(pair.target) as new:
        # The old copy is dead and writes nothing more, so its seqno is the end of its history.
        highs, details = await new.seqnos(State.ACTIVE), await old.stats("vbucket-details")
        for move in moves:
            vb = move["vbucket"]
            source_seqno, target_seqno = int(details.get(f"vb_{vb}:high_seqno", 0)), highs.get(vb, -1)
            branch, log = (await old.failover_log(vb))[0][0], await new.failover_log(vb)
            # The branch may have ended below that, and the rest of the seqnos belong to another one.
            common_seqno = BranchHistory(tuple(log), target_seqno).shared_with(branch) if log else 0
            if (
                min(target_seqno, common_seqno) < source_seqno
                or branch not in dict(log)
                or await old.state(vb) is State.ACTIVE
            ):
                message = f"{target} has it up to seqno {target_seqno}"
                message += f", {source} had it up to {source_seqno} of branch {branch:016x}"
                problem = f"the new owner has not what the old one had: {message}"
                errors.append(MoveError(vb, problem, "look at both nodes"))
                continue
            rows.append(
                move | {"source": source, "target": target, "high_seqno": source_seqno, "moved_at": time.time()}
            )
    return rows, errors


async def remove_dead_copies(pair: NodePair, vbuckets: Iterable[int]) -> None:
    """Remove the dead copies that old owners keep."""
    async with await NodeAdmin.connect(pair.source) as old:
        for vb in vbuckets:
            if await old.state(vb) is State.DEAD:
                await old.delete(vb)


class _Transition:
    """The attempts of a transition: look, move a batch, check it, note what is good, until nothing is left."""

    def __init__(
        self,
        nodes: TransitionNodes,
        journal: MoveJournal,
        run: Callable[[Sequence[TransitionTask]], list[bytes]],
        attempts: Attempts[TransitionProgress],
        job: Transition,
    ) -> None:
        self._nodes, self._journal, self._run, self._attempts, self._job = nodes, journal, run, attempts, job
        self._refused_moves: dict[int, MoveError] = {}  # of this attempt, by vbucket

    def attempt(self) -> None:
        """Move vbuckets, batch by batch, until all are moved or the job is stopped.

        A vbucket whose new owner lacks something is left as it is, and keeps no other from being moved and noted.

        Raises:
            MoveError: in the end, where there are such vbuckets, or some of which no node is the owner.
        """
        self._refused_moves = {}
        survey = asyncio.run(self._nodes.look())
        noted = {vb: ends for vb, ends in self._noted_moves().items() if vb not in survey.left}
        counts = self._attempts.progress
        counts.total = len(survey.left) + len(survey.moved.keys() | noted.keys())
        self._unnoted({vb: pair for vb, pair in survey.moved.items() if noted.get(vb) != pair.addresses})
        if self._job.delete:
            # Only what is noted: one that was refused a moment ago, and passes now, would go without a note.
            self._clear({vb: pair for vb, pair in survey.moved.items() if vb not in self._refused_moves})
        while (pairs_by_vbucket := self._remaining(survey)) and not self._attempts.stop():
            counts.moved = self._moved_count(survey)
            self._batch(pairs_by_vbucket)
            survey = asyncio.run(self._nodes.look())
        counts.moved = self._moved_count(survey)
        if error := _joined(_without_owner(survey.ownerless), self._refused_moves):
            raise error

    def _remaining(self, survey: TransitionSurvey) -> dict[int, NodePair]:
        """Return what is to be moved; what was refused in this attempt would be moved again without end."""
        return {vb: pair for vb, pair in survey.left.items() if vb not in self._refused_moves}

    def _moved_count(self, survey: TransitionSurvey) -> int:
        return self._attempts.progress.total - len(survey.left.keys() | self._refused_moves.keys())

    def _judged(self, pair: NodePair, moves: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the journal's rows of the good moves; keep the errors of the others."""
        rows, errors = asyncio.run(judged(pair, moves))
        self._refused_moves |= {error.vbucket: error for error in errors}
        return rows

    def _clear(self, noted: Mapping[int, NodePair]) -> None:
        """Remove the old copies of noted moves; keep those of which it can't be shown that the new owner has all.

        A note says what the new owner had then. If it has lost its disk since, the old copy is the only one. And if it
        has begun so many branches since that its log has lost the old one, nothing shows what they share.
        """
        for pair, vbuckets in by_pair(noted).items():
            rows = self._judged(pair, [{"vbucket": vb} for vb in vbuckets])
            asyncio.run(remove_dead_copies(pair, [row["vbucket"] for row in rows]))

    def _noted_moves(self) -> dict[int, tuple[str, str]]:
        """Return the nodes of each noted move, by vbucket.

        A journal may have moves of other transitions, whose nodes are not of this one; these are left out.
        """
        sources, targets = ({str(end.address) for end in ends} for ends in (self._nodes.sources, self._nodes.targets))
        return {
            row["vbucket"]: (row["source"], row["target"])
            for row in self._journal.rows()
            if self._nodes.is_wanted(row["vbucket"]) and row["source"] in sources and row["target"] in targets
        }

    def _unnoted(self, pairs: dict[int, NodePair]) -> None:
        """Check and note moves that an earlier run finished but did not note; that run's measurements are lost."""
        for pair, vbuckets in by_pair(pairs).items():
            unmeasured = [asdict(Moved(vb, 0, 0, 0.0, 0, 0.0)) for vb in vbuckets]
            self._journal.note(self._judged(pair, unmeasured))

    def _batch(self, pairs_by_vbucket: dict[int, NodePair]) -> None:
        pairs = by_pair(pairs_by_vbucket)
        tasks = [
            TransitionTask(pair.source, pair.target, tuple(vbuckets[: self._job.at_once]), self._job.patience_seconds)
            for pair, vbuckets in pairs.items()
        ]
        self._journal.forget(vb for task in tasks for vb in task.vbuckets)
        began = time.monotonic()
        answers = [json.loads(answer) for answer in self._run(tasks)]
        failpoint("transition.answered")
        rows = []
        for pair, result in zip(pairs, answers, strict=True):
            noted = self._judged(pair, result["moved"])
            # Noted before the old copies go: the journal is the only record of what they had.
            self._journal.note(noted)
            failpoint("transition.noted")
            if self._job.delete:
                asyncio.run(remove_dead_copies(pair, [row["vbucket"] for row in noted]))
            rows += noted
        self._attempts.watch.batch(time.monotonic() - began)
        self._report_moves(rows)
        errors = [MoveError(*each) for result in answers for each in result["failed"]]
        worst = min(errors, key=lambda each: each.retriable, default=None)
        if worst and (error := _joined(worst, self._refused_moves)):
            raise error

    def _report_moves(self, rows: list[dict[str, Any]]) -> None:
        counts = self._attempts.progress
        counts.batches, counts.latest = counts.batches + 1, rows
        counts.moved += len(rows)
        counts.changes += sum(row["changes"] for row in rows)
        counts.bytes += sum(row["bytes"] for row in rows)
        counts.ownerless_seconds = max([counts.ownerless_seconds, *(row["ownerless_seconds"] for row in rows)])
        if rows:
            self._attempts.batch_done()


def _without_owner(vbuckets: Collection[int]) -> MoveError | None:
    if not vbuckets:
        return None
    problem = "a source has a dead copy of it, and none of these nodes owns it"
    advice = "look for its owner; if that is another node, name the vbuckets to be moved"
    return MoveError(min(vbuckets), problem, f"{advice} ({len(vbuckets)} are so)")


def _joined(error: MoveError | None, errors: Mapping[int, MoveError]) -> MoveError | None:
    """Return one error for an error and those of refused vbuckets: neither hides the others."""
    if not errors:
        return error
    first = errors[min(errors)]
    if len(errors) > 1:
        numbers = ", ".join(map(str, sorted(errors)))
        first = MoveError(first.vbucket, first.problem, f"{first.advice} ({len(errors)} are so: {numbers})")
    if error is None:
        return first
    return MoveError(error.vbucket, error.problem, f"{error.advice}; {first}", error.retriable)


def by_pair(moves: Mapping[int, NodePair]) -> dict[NodePair, list[int]]:
    """Group vbuckets by the nodes between which they move, in their order."""
    grouped: dict[NodePair, list[int]] = {}
    for vb, pair in sorted(moves.items()):
        grouped.setdefault(pair, []).append(vb)
    return grouped


def work(job: Transition) -> TransitionProgress:
    """Let some nodes take over the vbuckets of others, batch by batch, until all are moved; return the last progress.

    A vbucket goes to the target with the index (its number modulo the number of targets), or to the node towards which
    its interrupted move went.

    Raises:
        OptionError: nodes of a cluster, or named twice; a vbucket with two owners.
        SparkUnavailable: Spark can't be started here.
        MoveError: a vbucket can't be moved; or all others are, but of one the new owner lacks something, or there is a
            dead copy at a source and no owner.
        HeadwaterError: a failure that does not pass; vbuckets that were not moved stay where they are, and the next run
            continues.
    """
    attempts = attempts_of(job, TransitionProgress())
    nodes, journal = _nodes(job), MoveJournal(job.journal)
    with session_of(job, "512m") as spark, ExitStack() as stack:
        if spark is None:
            pool = Workers(len(job.sources) * len(job.targets) if job.workers is None else job.workers)
            stack.callback(pool.close)
        attempts.run(
            _Transition(nodes, journal, pool.run if spark is None else _runner_on(spark), attempts, job).attempt
        )
    return attempts.progress


async def plan(job: Transition) -> tuple[str, dict[str, Any]]:
    """Return the moves that the job would do, in words and as JSON types; nothing is changed. Raises as
    `TransitionNodes.look`.
    """
    survey = await _nodes(job).look()
    pairs = Counter(pair.addresses for pair in survey.left.values())
    lines = [f"{old} would hand {n:,} vbucket{'s' * (n != 1)} over to {new}" for (old, new), n in pairs.items()]
    lines.append(f"{len(survey.left):,} vbuckets would be moved, {len(survey.moved):,} have been")
    if survey.ownerless:
        lines.append(f"{len(survey.ownerless):,} have an owner at none of these nodes, and a dead copy at a source")
    moves = [{"from": old, "to": new, "vbuckets": number} for (old, new), number in pairs.items()]
    return "\n".join(lines), {
        "begun": False,
        **{name: len(each) for name, each in vars(survey).items()},
        "pairs": moves,
    }


def _nodes(job: Transition) -> TransitionNodes:
    def ends(nodes: Sequence[str | Endpoint]) -> list[Endpoint]:
        return [node if isinstance(node, Endpoint) else Endpoint.of(node, job.user, job.password) for node in nodes]

    return TransitionNodes(ends(job.sources), ends(job.targets), job.vbuckets)


def _runner_on(spark: SparkSession) -> Callable[[Sequence[TransitionTask]], list[bytes]]:
    """Return a function that runs tasks on a session's executors, one each, and returns their answers."""

    def run(tasks: Sequence[TransitionTask]) -> list[bytes]:
        numbered = spark.createDataFrame([(number,) for number in range(len(tasks))], "task int")
        spread = numbered.repartitionByRange(len(tasks), "task")
        rows = spread.mapInArrow(_answers(list(tasks)), "task int, answer binary").collect()
        return [bytes(row.answer) for row in sorted(rows, key=lambda row: row.task)]

    return run


def _answers(tasks: list[TransitionTask]) -> Callable[[Iterable[Any]], Iterator[Any]]:
    def answers(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            numbers = batch.column("task").to_pylist()
            columns: list[Any] = [
                pa.array(numbers, pa.int32()),
                pa.array([tasks[number].answer() for number in numbers]),
            ]
            yield pa.RecordBatch.from_arrays(columns, ["task", "answer"])

    return answers
