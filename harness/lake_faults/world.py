"""A bucket on real nodes, a table, and all their faults, each as a method that a scenario calls.

A method draws from the scenario's random numbers, so the same seed does the same in the same order. The mirror runs in
this process where nothing has to die (other steps can then run at its failpoints, in the middle of a batch), and in a
forked one where it does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness import nodes
from harness.lake_faults import judge
from harness.lake_faults.catalog import RestCatalog
from harness.lake_faults.engines import (
    ELSEWHERE,
    PATIENCE_SECONDS,
    Engine,
    OnSpark,
    WithoutSpark,
    leave_and_die,
    run_and_wait,
)
from harness.lake_faults.strangers import CATALOG, IcebergOnSpark, Refused
from harness.nodes import HandMade
from harness.processes import descendants, is_stopped
from headwater import client as headwater_client
from headwater.client import Client
from headwater.errors import HeadwaterError
from headwater.lake import folds, upkeep
from headwater.lake.commit import record_of
from headwater.lake.iceberg import entry
from headwater.lake.iceberg.place import FOLDER
from headwater.lake.index import FOLDER as INDEXES
from headwater.lake.index import Indexes
from headwater.lake.log import DataFile, TableLog, removal
from headwater.lake.store import TableStore
from headwater.lake.vacuum import vacuum
from headwater.lake.vectors import read as read_vector
from headwater.lake.verify import check_indexes
from headwater.pipelines.tasks import SEED
from headwater.testing.node import Node
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import State

VBUCKETS = 4
DELTA, ICEBERG, BOTH = FORMS = ("delta", "iceberg", "delta,iceberg")
POINTS = tuple(
    f"lake.{point}"
    for point in (
        "planned",
        "reading",
        "files_written",
        "log_committed",
        "before_commit",
        "after_commit",
        "before_fold",
    )
)
POINTS_OF_ICEBERG = tuple(
    f"iceberg.{point}" for point in ("vectors_written", "manifests_written", "before_commit", "after_commit")
)
POINTS_OF_CATALOGS = ("iceberg.before_catalog", "iceberg.after_catalog")
POINT_OF_LEAVING = "iceberg.left_catalog"
"""The failpoint of a process that takes a table out of its catalog; no mirror of a single table passes it."""
POINTS_OF_FOLDS = ("after_fold", "checkpointed")
POINTS_OF_PROCESSES = tuple(
    f"{point}={action}"
    for point in ("folding", "folding", "checkpointed")
    for action in ("kill", "stop", "eio", "raise")
)
DAY = 86_400.0
KEEP_TOMBSTONES, PURGE = bytes(7) + b"\1" + bytes(16), bytes(16) + b"\1" + bytes(7)
ODD_KEYS = (b"\0", b"\xff\xfe", b"a\nb", b"k" * 250, "größe ☃".encode(), b'"', b"%41", b" ")


class World:
    """A bucket, a table and a change log.

    Args:
        random: the source of all decisions.
        cluster: the nodes, one or two.
        folder: for the table.
        unfold: True if JSON documents become columns.
        told: called with a line for each step.
        engine: runs the mirrors.
        form: of the table, as `--format` has it.
        catalog: a catalog that follows the table.
        strangers: Iceberg on Spark, if it is installed.
    """

    def __init__(
        self,
        random: Random,
        cluster: HandMade,
        folder: Path,
        *,
        unfold: bool,
        told: Callable[[str], None],
        engine: Engine | None = None,
        form: str = DELTA,
        catalog: RestCatalog | None = None,
        strangers: IcebergOnSpark | None = None,
    ) -> None:
        self.strangers = strangers
        self.engine, self.form, self.catalog = engine or WithoutSpark(), form, catalog
        self.random, self.cluster, self.unfold, self.told = random, cluster, unfold, told
        self.place = folder / "table"
        self._written = 0
        self._kept: list[Path] = []
        self._cut: dict[int, int] = {}
        """By vbucket whose replica was cut off: the number of the node with that replica."""

    @property
    def options(self) -> dict[str, Any]:
        """The options of all mirrors."""
        named = {"catalog": self.catalog.named(self.place)} if self.catalog else {}
        formed = {} if self.form == DELTA else {"format": self.form}
        return {"changelog": True, "json": self.unfold} | formed | named

    @property
    def _points(self) -> tuple[str, ...]:
        """The failpoints of a mirror."""
        more = () if self.form == DELTA else POINTS_OF_ICEBERG
        return (*POINTS, *more, *(POINTS_OF_CATALOGS if self.catalog else ()))

    @property
    def url(self) -> str:
        """The connection string of all nodes."""
        return f"couchbase://{','.join(node.address for node in self.cluster.nodes)}/default"

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Open a client of the bucket, for a block."""
        with headwater_client.connect(self.url, timeout_seconds=30.0) as connected:
            yield connected

    # The bucket.

    def write(self) -> None:
        """Store, overwrite and delete; now and then under odd keys, with large values, flags and expiries."""
        count = self.random.choice((1, 3, 20, 60))
        with self.client() as client:
            for _ in range(count):
                self._change(client)
        self.told(f"{count} changes")

    def _change(self, client: Client) -> None:
        key = self._key()
        if self.random.random() < 0.3:
            client.delete_many([key])
            return
        flags = self.random.choice((0, 0, 1, 0xFFFFFFFF))
        expiry = self.random.choice((0, 0, 0, 4_000_000_000))
        client.set(key, self._value(), flags=flags, expiry=expiry)

    def _key(self) -> bytes:
        if not self.unfold and self.random.random() < 0.05:
            return self.random.choice(ODD_KEYS)
        return b"k%d" % self.random.randrange(80)

    def _value(self) -> bytes:
        self._written += 1
        if self.unfold:
            return json.dumps(self._json()).encode()
        size = self.random.choice((0, 10, 200)) if self.random.random() > 0.005 else 2_000_000
        return b"%d." % self._written + self.random.randbytes(size)

    def _json(self) -> object:
        fields = ("a", "A", "event", "key", "", "x-y", "_rest", "n", f"new{self._written % 50}")
        values = (self._written, self._written + 0.5, "text", None, True, [1, "a"], {"in": {"ner": self._written}})
        if self.random.random() < 0.1:
            return self.random.choice((None, 3, [1], "x"))
        return {self.random.choice(fields): self.random.choice(values) for _ in range(5)}

    def kill_a_node(self) -> None:
        """Kill a node with SIGKILL, and start it again."""
        node = self.random.choice(self.cluster.nodes)
        node.kill()
        node.restart()
        self._wait_until_served()
        self.told("a node was killed and started again")

    def _wait_until_served(self) -> None:
        owners = self.cluster.owners

        def served() -> bool:
            return all(nodes.state(self.cluster.nodes[owner], vb) is State.ACTIVE for vb, owner in enumerate(owners))

        nodes.until(served, "all vbuckets are active where they were")

    def purge(self) -> None:
        """Let the nodes purge replaced versions, and perhaps tombstones, too."""
        which = self.random.choice((PURGE, KEEP_TOMBSTONES))
        for vbucket, owner in enumerate(self.cluster.owners):
            nodes.call(self.cluster.nodes[owner], Opcode.COMPACT_DB, extras=which, vbucket=vbucket)
        self.told("deletions are purged" if which == PURGE else "compacted")

    def keep(self) -> None:
        """Save the node's present data, as a replica has it that receives nothing from now on."""
        self._kept.append(nodes.keep(self.cluster.nodes[0]))
        self.told(f"a replica of now is kept ({len(self._kept)})")

    def go_back(self) -> None:
        """Promote a saved replica: its history is shorter, and diverges with the next write."""
        if self._kept:
            kept = self._kept.pop(self.random.randrange(len(self._kept)))
            nodes.return_to(self.cluster.nodes[0], kept, VBUCKETS)
            self.told("a replica of before is promoted")

    def go_back_twice(self) -> None:
        """Promote one saved replica after the other, with writes between."""
        for _ in range(2):
            self.go_back()
            self.write()

    def take_over(self) -> None:
        """Move a vbucket to the other node by takeover."""
        vbucket = self.random.randrange(VBUCKETS)
        if vbucket not in self._cut:
            self.cluster.take_over(vbucket, 1 - self.cluster.owners[vbucket])
            self.cluster.publish()
            self.told(f"vbucket {vbucket} is taken over")

    def cut(self) -> None:
        """Make the other node a replica of a vbucket, and then cut it off."""
        vbucket = self.random.randrange(VBUCKETS)
        if vbucket not in self._cut:
            owner = self.cluster.owners[vbucket]
            self._follow(vbucket, 1 - owner)
            nodes.leave(self.cluster.nodes[1 - owner], self.cluster.nodes[owner].address)
            self._cut[vbucket] = 1 - owner
            self.told(f"the replica of vbucket {vbucket} hears nothing any more")

    def _follow(self, vbucket: int, to: int) -> None:
        target = self.cluster.nodes[to]
        if nodes.state(target, vbucket) not in (None, State.REPLICA):
            nodes.set_state(target, vbucket, State.REPLICA)
        self.cluster.follow(vbucket, to)

    def fail_over(self) -> None:
        """Promote all replicas that were cut off."""
        for vbucket, to in self._cut.items():
            self.cluster.fail_over(vbucket, to)
        if self._cut:
            self.cluster.publish()
            self.told(f"the replicas of the vbuckets {sorted(self._cut)} are promoted")
            self._cut.clear()

    def lose_a_branch(self) -> None:
        """Promote a replica of a vbucket that lacks changes of the table: the next batch reads that vbucket alone anew,
        unless other vbuckets were cut off before.
        """
        self.cut()
        self.write()
        self.mirror()
        self.fail_over()
        self.mirror()

    # The mirror.

    def mirror(self) -> None:
        """Run a mirror until the table has all changes."""
        done = self.engine.run(
            self.url,
            self.place,
            once=True,
            retry_seconds=PATIENCE_SECONDS,
            reading=self._options(),
            upkeep=self.random.random() < 0.8,
            **self.options,
        )
        self.told(f"mirror: {done.mutations} stored, {done.deletions} deleted, {done.rollbacks} rolled back")

    def _options(self) -> dict[str, str]:
        limit = self.random.choice(("", "", "3", "17"))
        return {"retrySeconds": "30"} | ({"maxChangesPerTrigger": limit} if limit else {})

    def mirror_that_dies(self) -> None:
        """Run a mirror in a process that is killed at one of its steps."""
        point = f"{self.random.choice(self._points)}=kill@{self.random.choice((1, 1, 2))}"
        self.engine.die(self.url, self.place, point, self.options, self.random)
        self.told(f"mirror, {point}")

    def mirror_that_fails(self) -> None:
        """Let the store refuse once, at one of the mirror's steps: the mirror tries again by itself."""
        point = f"{self.random.choice(self._points)}={self.random.choice(('eio', 'enospc', 'raise'))}"
        with self.engine.armed(point):
            self._mirror_that_may_fail() if point.startswith(ELSEWHERE) else self.mirror()
        self.told(f"  ... and met {point}")

    def _mirror_that_may_fail(self) -> None:
        """Run a mirror on Spark that may fail: each new process that Spark starts meets the failpoint again."""
        if self.engine.name == "local":
            return self.mirror()
        with suppress(HeadwaterError):
            self.engine.run(self.url, self.place, once=True, retry_seconds=5, **self.options)
        return None

    def mirror_that_meets(self, steps: Sequence[Callable[[], None]]) -> None:
        """Run a mirror, and another step in the middle of one of its own."""
        self._mirror_meeting(self.random.choice(self._points), self.random.choice(steps))

    def mirror_that_is_overtaken(self) -> None:
        """Let another writer move rows that a batch is about to replace, after the batch has looked them up."""
        self.mirror()
        self.write()
        self._mirror_meeting(
            self.random.choice(("lake.files_written", "lake.log_committed")), self.rewrite_as_a_stranger
        )

    def _mirror_meeting(self, point: str, step: Callable[[], None]) -> None:
        self.told(f"at {point}:")

        def apart() -> None:
            # In a thread of its own: a mirror must not use what the one that waits has open.
            failed: list[BaseException] = []

            def run() -> None:
                try:
                    step()
                except BaseException as error:
                    failed.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
            if failed:
                raise judge.Wrong(f"{step.__name__}: {failed[0]!r}") from failed[0]

        with self.engine.met(point, apart):
            self.mirror()

    def two_mirrors(self) -> None:
        """Run two mirrors on one table at the same time."""
        chance = Random(self.random.random())  # noqa: S311 -- to be repeated
        other = World(
            chance,
            self.cluster,
            self.place.parent,
            unfold=self.unfold,
            told=self.told,
            engine=self.engine,
            form=self.form,
            catalog=self.catalog,
            strangers=self.strangers,
        )
        failed: list[BaseException] = []

        def run() -> None:
            try:
                other.mirror()
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            self.mirror()
        finally:
            thread.join()
        if failed:
            raise failed[0]

    def mirror_meanwhile(self, steps: Sequence[Callable[[], None]]) -> None:
        """Keep a mirror running while some steps happen."""
        self.told("while a mirror runs:")
        with self._running() as stopping:
            for _ in range(self.random.randint(2, 5)):
                self.random.choice(steps)()
                stopping.wait(self.random.choice((0.0, 0.05, 0.3)))

    def mirror_folding(self, steps: Sequence[Callable[[], None]]) -> None:
        """Keep a mirror running that folds in a process of its own. There a fold dies, fails, or stands still until the
        process is continued or killed. On Spark there is no such process: then do as `mirror_meanwhile`.
        """
        if self.engine.name != "local":
            self.mirror_meanwhile(steps)
            return
        point = f"lake.{self.random.choice(POINTS_OF_PROCESSES)}@{self.random.choice((1, 3, 9))}"
        every, upkeep.CHECKPOINT_EVERY = upkeep.CHECKPOINT_EVERY, 5
        os.environ["HEADWATER_FAILPOINTS"] = point  # of the processes that the mirror begins
        self.told(f"while a mirror runs whose folds meet {point}:")
        try:
            with self._running(workers=1) as stopping:
                for _ in range(self.random.randint(10, 14)):
                    self.write()
                    if self.random.random() < 0.3:
                        self.random.choice(steps)()
                    stopping.wait(self.random.choice((0.05, 0.3)))
                    self._end_or_go_on(self.random.choice((signal.SIGCONT, signal.SIGKILL)))
        finally:
            upkeep.CHECKPOINT_EVERY = every
            del os.environ["HEADWATER_FAILPOINTS"]

    @staticmethod
    def _end_or_go_on(how: signal.Signals) -> None:
        for pid in filter(is_stopped, descendants(os.getpid())):
            with suppress(ProcessLookupError):
                os.kill(pid, how)

    @contextmanager
    def _running(self, **more: object) -> Iterator[threading.Event]:
        stopping, failed = threading.Event(), []

        def run() -> None:
            options = {"retrySeconds": "30", "pollIntervalSeconds": "0.05"}
            try:
                self.engine.run(
                    self.url,
                    self.place,
                    interval_seconds=0.02,
                    retry_seconds=PATIENCE_SECONDS,
                    reading=options,
                    stop=stopping.is_set,
                    **self.options,
                    **more,
                )
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield stopping
        finally:
            stopping.set()
            while thread.is_alive():
                thread.join(0.2)
                if more:
                    self._end_or_go_on(signal.SIGCONT)
        if failed:
            raise failed[0]

    # The table.

    def _log(self) -> TableLog | None:
        log = TableLog(TableStore(self.place))
        return log if log.refresh().version >= 0 else None

    def harm_an_index(self) -> None:
        """Remove an index, cut it short, or replace it by another one."""
        found = sorted((self.place / INDEXES).glob("*")) if self.place.exists() else []
        if found:
            harm, index = self.random.choice(("lost", "cut", "changed")), self.random.choice(found)
            if harm == "lost":
                index.unlink()
            elif harm == "cut":
                content = index.read_bytes()
                self._replace(index, content[: self.random.randrange(len(content))])
            else:
                self._replace(index, self.random.choice(found).read_bytes())
            self.told(f"an index is {harm}")

    def lose_all_indexes(self) -> None:
        """Remove the folder of the indexes."""
        shutil.rmtree(self.place / INDEXES, ignore_errors=True)
        self.told("all indexes are lost")

    @staticmethod
    def _replace(path: Path, content: bytes) -> None:
        # Beside it and renamed: the file may be mapped by a mirror that runs.
        beside = path.with_name(f".{uuid4().hex}")
        beside.write_bytes(content)
        beside.rename(path)

    def optimize(self) -> None:
        """Fold the table, as `headwater lake optimize` does."""
        if log := self._log():
            indexes = Indexes(log.store, log.state.id, bytes.fromhex(log.state.properties[SEED]))
            folded = folds.optimize(log, indexes, everything=self.random.random() < 0.5)
            self.told(f"{folded} files are folded")

    def checkpoint(self) -> None:
        """Write a checkpoint of the log, and perhaps remove `_last_checkpoint`."""
        if log := self._log():
            upkeep.checkpoint(log)
            if self.random.random() < 0.5:
                (self.place / "_delta_log" / "_last_checkpoint").unlink(missing_ok=True)
            self.told("a checkpoint of the log is written")

    def vacuum(self) -> None:
        """Vacuum the table under a clock that is some days off, either way."""
        if log := self._log():
            days = self.random.choice((-400, 0, 3, 8, 40, 400))
            self._age(log)
            gone = vacuum(log, now=time.time() + days * DAY)
            self.told(f"vacuum, the clock {days} days off: {len(gone)} files removed")

    def _age(self, log: TableLog) -> None:
        """Set the times of old files back by more than a batch takes, as in a table of some days."""
        whole = TableLog(log.store, removals=True)
        known = {file.path for file in whole.refresh().files.values()}
        known |= {str(path) for path in whole.removals().column("path").to_pylist()}
        paths = [self.place / path for path in known] + sorted((self.place / "_delta_log").glob("*.json"))[:-1]
        for path in filter(Path.exists, paths):
            os.utime(path, (time.time() - 7200, time.time() - 7200))

    def rewrite_as_a_stranger(self) -> None:
        """Replace some files by others with the same rows in another order, without statistics, as a foreign writer
        may.
        """
        if (log := self._log()) and (chosen := self._some_files(log)):
            rows = pa.concat_tables([_live(log.store, file) for file in chosen], promote_options="default")
            order = list(range(rows.num_rows))
            self.random.shuffle(order)
            done = self._commit_as_a_stranger(log, chosen, rows.take(order), "OPTIMIZE")
            self.told(f"a stranger rewrites {len(chosen)} files{'' if done else ', too late'}")

    def delete_as_a_stranger(self) -> None:
        """Delete the rows of a vbucket from some files; then write these documents anew, which restores the rows."""
        if (log := self._log()) and (chosen := self._some_files(log)):
            vbucket = self.random.randrange(VBUCKETS)
            rows = pa.concat_tables([_live(log.store, file) for file in chosen], promote_options="default")
            mine = pc.equal(rows.column("vbucket"), pa.scalar(vbucket, pa.int32()))
            kept, gone = rows.filter(pc.invert(mine)), rows.filter(mine).column("key").to_pylist()
            if self._commit_as_a_stranger(log, chosen, kept, "DELETE"):
                with self.client() as client:
                    for key in gone:
                        client.set(key or b"", self._value())
                self.told(f"a stranger deletes {len(gone)} rows of vbucket {vbucket}; they are written anew")

    def optimize_by_spark(self) -> None:
        """Let Delta on Spark fold the table in the middle of a batch; it may come too late."""
        if self._log():
            self._by_spark("OPTIMIZE", "delta.`{place}`")

    def delete_by_spark(self) -> None:
        """Let Delta on Spark delete the rows of a vbucket; then write its documents anew, which restores the rows."""
        vbucket = self.random.randrange(VBUCKETS)
        if self._log() and self._by_spark("DELETE", "FROM delta.`{place}` WHERE vbucket = {vb}", vb=vbucket):
            with self.client() as client:
                for key in [key for vb, key in judge.of_nodes(client).documents if vb == vbucket]:
                    client.set(key, self._value())

    def _by_spark(self, verb: str, rest: str, **names: object) -> bool:
        if not isinstance(self.engine, OnSpark):
            return False
        try:
            self.engine.spark.sql(f"{verb} {rest.format(place=self.place, **names)}")
        except Exception as error:
            if "CONCURRENT" not in str(error).upper():
                raise
            self.told(f"{verb} by Spark, too late")
            return False
        self.told(f"{verb} by Spark")
        return True

    def merge_by_iceberg(self) -> None:
        """Let Iceberg on Spark change rows of the table of Iceberg: the next publication puts them right."""
        vbucket = self.random.randrange(VBUCKETS)
        source = f"(SELECT key AS k FROM {{table}} WHERE vbucket = {vbucket})"  # noqa: S608
        self._by_iceberg(f"MERGE INTO {{table}} USING {source} ON key = k WHEN MATCHED THEN UPDATE SET flags = 77")

    def delete_by_iceberg(self) -> None:
        """Let Iceberg on Spark delete rows of the table of Iceberg."""
        self._by_iceberg(f"DELETE FROM {{table}} WHERE vbucket = {self.random.randrange(VBUCKETS)}")  # noqa: S608

    def rewrite_by_iceberg(self) -> None:
        """Let Iceberg on Spark write all data files anew."""
        self._by_iceberg(
            f"CALL {CATALOG}.system.rewrite_data_files('{{table}}', options => map('rewrite-all', 'true'))"
        )

    def expire_by_iceberg(self) -> None:
        """Let Iceberg on Spark expire snapshots, which it refuses: `gc.enabled` is false."""
        if self._by_iceberg(
            f"CALL {CATALOG}.system.expire_snapshots('{{table}}', TIMESTAMP '2100-01-01 00:00:00', 1)", "GC is disabled"
        ):
            raise judge.Wrong("expire_snapshots was not refused: files that the log needs may be gone")

    def _by_iceberg(self, statement: str, refusal: str = "") -> bool:
        """Run a statement; return True if it was carried out. It may come too late, and with a refusal it must fail."""
        if self.strangers is None or not self._log():
            return False
        verb = statement.partition("(")[0].partition("{")[0].strip()
        try:
            self.strangers.run(iceberg_of(self.place, self.form), statement)
        except Refused as error:
            if not any(words in str(error) for words in (refusal or "CommitFailed", "Commit", "conflict")):
                raise
            self.told(f"{verb} by Iceberg is refused or too late")
            return False
        self.told(f"{verb} by Iceberg")
        return True

    def catalog_is_away(self) -> None:
        """Let the catalog refuse its next requests, as one that is killed before it answers."""
        if self.catalog:
            self.catalog.server.refuses = self.random.choice((1, 2, 5, 9))
            self.told("the catalog is away for a while")

    def catalog_loses_answers(self) -> None:
        """Let the catalog commit, and be killed before its answer is sent."""
        if self.catalog:
            self.catalog.server.loses = self.random.choice((1, 1, 2))
            self.told("the catalog loses the answers to commits")

    def commit_through_the_catalog(self) -> None:
        """Let somebody else commit through the catalog, which then has metadata that is not the folder's."""
        if self.catalog:
            with suppress(Exception):  # it may be away, have no table yet, or be late
                self.catalog.load(self.place).transaction().set_properties(
                    note=str(self.random.random())
                ).commit_transaction()
                self.told("somebody commits through the catalog")

    def drop_from_the_catalog(self) -> None:
        """Drop the table from the catalog: the next publication registers it anew."""
        if self.catalog and self.catalog.server.tables.pop(self.place.name, None):
            self.told("the catalog has lost the table")

    def leave_the_catalog(self) -> None:
        """Let another process take the table out of the catalog, as the mirror of a dropped collection does. It may be
        killed before the table forgets its name there. The next mirror registers the table anew.
        """
        if self.catalog and self._log() is not None:
            point = self.random.choice((f"{POINT_OF_LEAVING}=kill", f"{POINT_OF_LEAVING}=kill", ""))
            run_and_wait(point, leave_and_die, self.place, point, self.catalog.server.url)
            self.told(f"the table leaves its catalog{', ' * bool(point)}{point}")

    def _some_files(self, log: TableLog) -> list[DataFile]:
        files = list(log.state.files.values())
        return self.random.sample(files, min(len(files), self.random.randint(1, 4)))

    def _commit_as_a_stranger(self, log: TableLog, chosen: Sequence[DataFile], rows: pa.Table, what: str) -> bool:
        path = log.state.layout.label(f"stranger-{uuid4()}.parquet")
        actions = [removal(file, int(time.time() * 1000), data_change=what != "OPTIMIZE") for file in chosen]
        if rows.num_rows:
            pq.write_table(_in_large_types(rows), self.place / path, row_group_size=7)
            size = (self.place / path).stat().st_size
            told = {"path": path, "partitionValues": {}, "size": size, "dataChange": what != "OPTIMIZE"}
            actions.append({"add": told | {"modificationTime": int(time.time() * 1000)}})
        return log.commit(actions, what)

    # The end.

    def check(self) -> None:
        """Bring the table up to date and compare it with the bucket.

        Raises:
            Wrong: something differs.
        """
        if self.catalog:
            self.catalog.server.refuses = self.catalog.server.loses = 0
        self.mirror()
        again = self.engine.run(self.url, self.place, once=True, **self.options)
        if again.mutations or again.deletions:
            raise judge.Wrong(f"with nothing to do a mirror stored {again.mutations} and deleted {again.deletions}")
        with self.client() as client:
            bucket = judge.of_nodes(client)
        judge.compare(judge.of_table(self.place), bucket)
        judge.check_changes(Path(f"{self.place}_changes"), bucket)
        if self.form != DELTA:
            self._check_iceberg(bucket)
        if log := self._log():
            indexes = Indexes(log.store, log.state.id, bytes.fromhex(log.state.properties[SEED]))
            misleading = [line for line in check_indexes(log.store, log.state, indexes) if "does not lead" in line]
            if misleading:
                raise judge.Wrong(misleading[0])
            self.told(f"equal: {len(bucket.documents)} documents, batch {record_of('', log.state).batch}")

    def _check_iceberg(self, bucket: judge.Bucket) -> None:
        """Compare what readers of Iceberg see with the bucket, and each snapshot with its version of the log."""
        for place in (self.place, Path(f"{self.place}_changes")):
            log = TableLog(TableStore(place))
            log.refresh()
            if problems := entry.differences(log):
                raise judge.Wrong(f"{place.name}: {problems[0]}")
        for read in (judge.by_pyiceberg, judge.by_duckdb):
            judge.compare(judge.of_rows(read(iceberg_of(self.place, self.form))), bucket)
        changes = iceberg_of(Path(f"{self.place}_changes"), self.form)
        judge.check_rows(judge.by_pyiceberg(changes, judge.LOGGED), bucket)
        counts = judge.check_snapshots(self.place, iceberg_of(self.place, self.form))
        if self.catalog:
            judge.compare(judge.of_rows(judge.of_catalog(self.catalog.load(self.place))), bucket)
        all_of_them = counts.compared + counts.skipped
        self.told(f"{counts.compared} of {all_of_them} snapshots are versions of the log")


def iceberg_of(place: Path, form: str) -> Path:
    """Return the folder that readers of Iceberg are given."""
    return place / FOLDER if form == BOTH else place


def _live(store: TableStore, file: DataFile) -> pa.Table:
    rows = pq.read_table(store.full(file.path))
    rows = rows.cast(pa.schema([each.with_type(_SMALL.get(each.type, each.type)) for each in rows.schema]))
    dead = read_vector(store, file.vector) if file.vector else ()
    return rows.take([row for row in range(rows.num_rows) if row not in dead])


_LARGE: dict[Any, Any] = {pa.binary(): pa.large_binary(), pa.string(): pa.large_string()}
_SMALL = {large: small for small, large in _LARGE.items()}


def _in_large_types(rows: pa.Table) -> pa.Table:
    """Return rows in Arrow's large types, as Polars writes them; Parquet keeps Arrow's types beside its own."""
    return rows.cast(pa.schema([each.with_type(_LARGE.get(each.type, each.type)) for each in rows.schema]))


def nodes_of(node: Node) -> HandMade:
    """Return a single node as a cluster of one, without a map."""
    return HandMade([node], VBUCKETS)
