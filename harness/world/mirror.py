"""The lake's mirror of a simulated cluster: the product's job, killed at any instant and started again.

It runs in simulated time on the local engine, with its upkeep beside it, and its table lies in an object store that
loses requests and answers (objects.py). Each version of the table is read when its commit appears, and checked against
the histories: it is a state that the bucket had, every vbucket at the seqno of the table's own record. At the end the
table is brought level, and read once more by Polars, with its change log.

Old files and commits are removed after seconds here, which take days elsewhere.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from harness.lake_faults import judge
from harness.simulation.histories import Broken
from harness.world import blocking, operators
from harness.world.backups import change_of
from harness.world.befores import BeforesJudge
from harness.world.versions import LogJudge, Warnings
from headwater import client
from headwater.errors import HeadwaterError
from headwater.lake import vectors
from headwater.lake.log import COMMIT, DOMAIN, FOLDER, DataFile, TableState
from headwater.lake.objects import ObjectStore
from headwater.lake.places import CHANGES
from headwater.pipelines.mirror import mirror
from headwater.spark.offsets import Offset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.simulation.histories import Change
    from harness.world.blocking import BlockingProgram
    from harness.world.steps import Step
    from harness.world.world import World

PLACE = "s3://lake/table"
ROOT = "lake/table"
LOG = f"{ROOT}{CHANGES}"
JUDGED = (f"{ROOT}/{FOLDER}", f"{LOG}/{FOLDER}")
LEVEL_SECONDS = 300.0
AGAIN_SECONDS = 1.0
EXPIRY_SECONDS = 30.0
"""The longest time until all documents with an expiry have expired."""
AT_ONCE = ("", "5", "40")
RETRY_SECONDS = "10"
VERSIONS = ("last", "last", "history", "before")
"""The versions in the change log of a mirror, and whether each comes with what it replaced."""

Rows = dict[tuple[int, bytes], tuple[int, "Change"]]
"""By vbucket and key: the seqno, and the document."""


class Lake:
    """The mirror of a world, and the judge of its table.

    Attributes:
        versions: the number of the table's versions so far.
        versions_logged: the versions that its change log has, of `VERSIONS`.
    """

    def __init__(self, world: World) -> None:
        self.versions = 0
        self._world = world
        self._random = Random(f"lake of {world.plan.seed}")  # noqa: S311 - must be repeatable
        self._limit = self._random.choice(AT_ONCE)
        self.versions_logged = self._random.choice(VERSIONS)
        self._warnings = Warnings()
        befores = BeforesJudge(world.watcher.branches, world.counts)
        self._judge_of_log = LogJudge(world.watcher, befores, world.counts)
        self._running: BlockingProgram | None = None
        self._stops = self._is_used = False
        self._state = TableState()
        self._files: dict[str, list[tuple[tuple[int, bytes], tuple[int, Change]]]] = {}
        self._broken: Broken | None = None
        world.store.on_put.append(self._put)

    # --- the mirror -------------------------------------------------------------------------------------------------

    def begin(self, step: Step) -> Callable[[], None] | None:
        """Start the mirror, or kill the running one; return the function that starts it again."""
        self._is_used = True
        if self._running is None or self._running.is_over:
            self._start()
            return None
        self._world.counts["mirrors killed"] += 1
        self._running.kill()
        return self._start

    def _start(self) -> None:
        if self._running is None or self._running.is_over:
            self._world.counts["mirrors started"] += 1
            self._running = self._world.run_blocking("mirror", self._keep_up)

    def _keep_up(self) -> None:
        while not self._stops:
            try_mirror(self._world, "mirrors", partial(self._mirror, once=False))

    def _mirror(self, *, once: bool) -> None:
        limit = {"maxChangesPerTrigger": self._limit} if self._limit else {}
        with self._warnings.heard():
            done = mirror(
                None,
                self._world.url,
                PLACE,
                once=once,
                changelog=True,
                workers=0,
                interval_seconds=0.2,
                reading={"retrySeconds": RETRY_SECONDS, "pollIntervalSeconds": "0.2"}
                | limit
                | operators.login_options(),
                stop=lambda: self._stops and not once,
                history=self.versions_logged == "history",
                before=self.versions_logged == "before",
            )
        self._world.counts["rollbacks of the mirror"] += done.rollbacks

    # --- its versions -----------------------------------------------------------------------------------------------

    def _put(self, key: str) -> None:
        """Judge the object that appeared if it is the next commit of the table, or of its change log."""
        folder, _, name = key.rpartition("/")
        if folder not in JUDGED or not COMMIT.fullmatch(name) or self._broken is not None:
            return
        content = self._world.store.held[key].content
        try:
            if folder == JUDGED[0]:
                self._judge(int(name[:20]), content)
            else:
                self._judge_log(content)
        except Broken as broken:
            self._broken = broken  # told at the end: here it would be the mirror's

    def _judge_log(self, content: bytes) -> None:
        added = (action["add"]["path"] for action in map(json.loads, content.splitlines()) if "add" in action)
        for path in added:
            self._judge_of_log.judge_added(self._rows_at(LOG, path, "the change log"))

    def _rows_at(self, folder: str, path: str, who: str) -> list[dict[str, Any]]:
        key = f"{folder}/{path}"
        if key not in self._world.store.held:
            raise Broken(f"lake: {who} names {path}, which is not there")
        return pq.read_table(io.BytesIO(self._world.store.held[key].content)).to_pylist()

    def _judge(self, version: int, content: bytes) -> None:
        if version != self._state.version + 1:
            raise Broken(f"lake: version {version} follows version {self._state.version}")
        self._state.apply(map(json.loads, content.splitlines()))
        self._state.version = version
        self.versions += 1
        self._world.counts["versions of the table judged"] += 1
        self._compare(self._rows(self._state.files.values()))

    def _rows(self, files: Iterable[DataFile]) -> Rows:
        found: Rows = {}
        for file in files:
            for key, row in self._alive(file):
                if key in found:
                    raise Broken(f"lake: version {self._state.version} has two rows of {key}")
                found[key] = row
        return found

    def _alive(self, file: DataFile) -> Iterator[tuple[tuple[int, bytes], tuple[int, Change]]]:
        if file.path not in self._files:
            self._files[file.path] = list(map(_row, self._rows_at(ROOT, file.path, f"version {self._state.version}")))
        dead = vectors.read(ObjectStore(PLACE), file.vector) if file.vector else ()
        return (row for number, row in enumerate(self._files[file.path]) if number not in dead)

    def _compare(self, rows: Rows) -> None:
        """Check a version against the histories, at the seqnos of its record."""
        end = Offset.from_json(json.loads(self._state.records[DOMAIN])["end"])
        watcher = self._world.watcher
        for vb in range(self._world.plan.vbuckets):
            place = end.position(vb)
            ours = ((key, row) for (each, key), row in rows.items() if each == vb)
            held = {key: (seqno, watcher.branches.as_written(change)) for key, (seqno, change) in ours}
            newest = watcher.branches.newest(vb, watcher.log_of(vb, place.vb_uuid), place.seqno) if place.seqno else {}
            expected = {key: row for key, row in newest.items() if row[1].value is not None}
            different = sorted(key for key in {**held, **expected} if held.get(key) != expected.get(key))
            if different:
                key = different[0]
                raise Broken(
                    f"lake: version {self._state.version} has vbucket {vb} at {place.vb_uuid:x}@{place.seqno}, and of"
                    f" {len(different)} documents another version; {key!r}: {held.get(key)} for {expected.get(key)}"
                )

    # --- the end ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Bring the table level, and read it by other means.

        These do not excuse bits that flipped before a node found it: values that were read until then stay in the
        table.

        Raises:
            Broken: a promise does not hold.
        """
        if self._broken is not None:
            raise self._broken
        if not self._is_used:
            return
        self._stops = True
        if self._running is not None:
            self._completed(self._running)
        self._await_expiry()
        self._completed(self._world.run_blocking("last-mirror", partial(self._mirror, once=True)))
        nodes: list[judge.Bucket] = []
        self._completed(self._world.run_blocking("reader-of-all", lambda: nodes.append(self._documents())))
        if self._broken is not None:
            raise self._broken
        self._files.clear()
        self._compare(self._rows(self._state.files.values()))
        if self._world.damage.flips:
            return
        with TemporaryDirectory(prefix="headwater-lake-") as folder:
            self._read_by_others(Path(folder), nodes[0])

    def _await_expiry(self) -> None:
        """Wait until documents have expired: nothing may change between the mirror's last run and the reads of the
        nodes.
        """
        world = self._world
        until = world.schedule.now + EXPIRY_SECONDS
        while world.schedule.now < until and any(map(self._expires, range(world.plan.vbuckets))):
            world.schedule.run(AGAIN_SECONDS)

    def _expires(self, vb: int) -> bool:
        held = self._world.watcher.observers[self._world.copies(vb)[0]].held(vb)
        return any(change.expiry and change.value is not None for _, change in held.values())

    def _completed(self, program: BlockingProgram) -> None:
        complete(self._world, program)

    def _documents(self) -> judge.Bucket:
        with client.connect(self._world.url, *operators.LOGIN) as bucket:
            return judge.of_nodes(bucket)

    def _read_by_others(self, folder: Path, bucket: judge.Bucket) -> None:
        for key, stored in self._world.store.held.items():
            if key.startswith("lake/"):
                path = folder / key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(stored.content)
        try:
            judge.compare(judge.of_table(folder / ROOT), bucket)
            judge.check_changes(folder / LOG, bucket)
        except judge.Wrong as wrong:
            raise Broken(f"lake: {wrong}") from wrong
        if self.versions_logged != "last":
            self._check_versions(judge.counting_of(folder / LOG))

    def _check_versions(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Check that the rows of the log that count are every version."""
        end = Offset.from_json(json.loads(self._state.records[DOMAIN])["end"])
        for vb in range(self._world.plan.vbuckets):
            place = end.position(vb)
            of_vbucket = (row for row in rows if row["vbucket"] == vb)
            floor = self._warnings.floors.get(vb, 0)
            self._judge_of_log.judge_whole(vb, (place.vb_uuid, place.seqno), of_vbucket, floor)


def try_mirror(world: World, whose: str, run: Callable[[], None]) -> None:
    """Run a mirror as a service does: it is started again a moment after it has given up."""
    try:
        run()
    except (HeadwaterError, OSError) as error:
        world.counts[f"{whose} given up: {type(error).__name__}"] += 1
        blocking.sleep(AGAIN_SECONDS)


def complete(world: World, program: BlockingProgram) -> None:
    """Let a mirror or a reader come to its end.

    Raises:
        Broken: it does not. Others: the error with which it ended.
    """
    if not world.schedule.run(LEVEL_SECONDS, lambda: program.is_over):
        raise Broken(f"lake: {program.name} has not come to an end within {LEVEL_SECONDS:g} s")
    if program.error is not None:
        raise program.error


def _row(row: Mapping[str, Any]) -> tuple[tuple[int, bytes], tuple[int, Change]]:
    key = bytes(row["key"])
    return (row["vbucket"], key), (row["seqno"], change_of(row, key))
