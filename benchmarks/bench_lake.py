"""The mirror's batches, large and small, its starts, and the `dcp` source with few columns: each beside a yardstick.

    large    a million documents into an empty table, then a million new versions, by a warm mirror; beside Spark that
             reads and writes the same rows as Parquet, and a plain MERGE of the same rows into a plain Delta table
    small    a thousand changes at a time into a large table, from "durable in the node" to "in the table"
    kafka    an upsert of all rows beside Spark's Kafka source and a MERGE of the same rows (needs Maven Central once)
    starts   `headwater mirror --once` as a command: with nothing to do, and into an empty table
    ids      a table whose rows keep their ids beside one whose rows do not: inserts, upserts of all rows, small
             batches, and a fold of all, by the local engine in one process
    source   the `dcp` source to Spark's noop: key, value and seqno, and all columns; beside it a source that has the
             same batches ready in memory, for what Spark makes of them is in both
    demo     `headwater demo`

Every line has seconds on the clock and CPU seconds of all processes: ours with the node and Python workers, Spark's
with the JVM. Values are random: of letters that Parquet can pack a million rows become a few MiB, and everything looks
fast. The compared runs take turns, and medians are printed. One session does all of Spark's work, with the JVM's own
settings, so that the yardsticks have the compiler of an ordinary session.

    python -m benchmarks.bench_lake --rows 100000 --rounds 1 --only large,source
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench_spark import prepare, ready_source
from benchmarks.bench_streams import send
from benchmarks.gauge import Cost, adopt_orphans, cost, median
from benchmarks.harness import publish
from benchmarks.kafka import SOURCE, KafkaMerge, broker, publish_rows
from benchmarks.paced import Paced
from headwater import testing
from headwater.pipelines import tables
from headwater.pipelines.mirror import mirror
from headwater.pipelines.session import DELTA, local_session
from headwater.pipelines.tasks import TASK_CHANGES
from headwater.testing import Node
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import vbucket_of

SECTIONS = ("large", "small", "kafka", "starts", "ids", "source", "demo")
VALUE_BYTES, VBUCKETS, PIECE = 256, 64, 4096
CORES = "local[2]"
FEW = "key binary, value binary, seqno bigint"
_SET = np.dtype(
    [
        *(("magic", "u1"), ("opcode", "u1"), ("key_length", ">u2"), ("extras_length", "u1"), ("datatype", "u1")),
        *(("vbucket", ">u2"), ("body", ">u4"), ("opaque", ">u4"), ("cas", ">u8"), ("flags", ">u4"), ("expiry", ">u4")),
        *(("key", "S16"), ("value", f"V{VALUE_BYTES}")),
    ]
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: a measurement, and the target by which it is judged.

    Attributes:
        seconds, cpu_seconds: medians of ours.
        yardstick: its name, or "" where the target is in seconds.
        wall_ratio, cpu_ratio: the yardstick's seconds for one of ours.
        wanted: the target, in words.
        met: True if the target is met; None where there is no target.
        note: more figures.
    """

    name: str
    seconds: float
    cpu_seconds: float
    yardstick: str = ""
    yardstick_seconds: float = 0.0
    yardstick_cpu_seconds: float = 0.0
    wall_ratio: float = 0.0
    cpu_ratio: float = 0.0
    wanted: str = ""
    met: bool | None = None
    note: str = ""

    def __str__(self) -> str:
        text = f"{self.name}: {self.seconds:.3g} s, {self.cpu_seconds:.3g} CPU s"
        if self.yardstick:
            text += f"; {self.yardstick} {self.yardstick_seconds:.3g} s, {self.yardstick_cpu_seconds:.3g} CPU s"
            text += f"; ratio {self.wall_ratio:.2f}, of CPU {self.cpu_ratio:.2f}"
        if self.met is not None:
            text += f"; wanted {self.wanted}: {'met' if self.met else 'MISSED'}"
        return text + (f"; {self.note}" if self.note else "")


def alone(name: str, ours: Cost, wanted: str, met: bool | None, note: str = "") -> None:
    """Publish a line that has no yardstick."""
    publish(Line(name, ours.wall, ours.cpu, wanted=wanted, met=met, note=note))


def beside(
    name: str,
    ours: Sequence[Cost],
    yardstick: tuple[str, Sequence[Cost]],
    wall: float | None = None,
    cpu: float | None = None,
) -> None:
    """Publish a line with its yardstick. `wall` and `cpu` are the targets: the yardstick takes at least so many times
    our seconds, on the clock and of CPU; None for no target.
    """
    one, other = median(ours), median(yardstick[1])
    ratios = other.wall / one.wall, other.cpu / max(one.cpu, 0.01)
    wanted = "" if wall is None else f"{wall}" + (f" and {cpu:.3g} of CPU" if cpu else "")
    met = None if wall is None else ratios[0] >= wall and ratios[1] >= (cpu or 0)
    spread = "our rounds " + ", ".join(f"{each.wall:.3g}" for each in ours)
    publish(Line(name, one.wall, one.cpu, yardstick[0], other.wall, other.cpu, *ratios, wanted, met, spread))


@lru_cache(3)
def requests(rows: int) -> NDArray[Any]:
    """Return a quiet set of each key, 16 bytes each, without values."""
    return _requests([b"k%015d" % number for number in range(rows)])


@lru_cache(1)
def few_vbuckets() -> NDArray[Any]:
    """Return quiet sets of other keys, enough for two tasks, all in the first vbucket and the last."""
    keys = (b"w%015d" % number for number in itertools.count())
    ends = (key for key in keys if vbucket_of(key, VBUCKETS) in {0, VBUCKETS - 1})
    return _requests(list(itertools.islice(ends, 2 * TASK_CHANGES + 1)))


def _requests(keys: Sequence[bytes]) -> NDArray[Any]:
    made = np.zeros(len(keys), _SET)
    made["magic"], made["opcode"], made["key_length"], made["extras_length"] = 0x80, Opcode.SETQ, 16, 8
    made["body"] = 8 + 16 + VALUE_BYTES
    made["key"], made["vbucket"] = keys, [vbucket_of(key, VBUCKETS) for key in keys]
    return made


def load(node: Node, wanted: NDArray[Any], rng: np.random.Generator, which: NDArray[Any] | None = None) -> None:
    """Store new values of all keys, or of those with the indexes `which`, six random bits a byte; return once they are
    durable.
    """

    def pieces() -> Iterator[bytes]:
        for first in range(0, len(wanted if which is None else which), PIECE):
            piece = (wanted[first : first + PIECE] if which is None else wanted[which[first : first + PIECE]]).copy()
            values = rng.integers(0, 64, (len(piece), VALUE_BYTES), np.uint8) + np.uint8(48)
            piece["value"] = values.view(f"V{VALUE_BYTES}").ravel()
            yield piece.tobytes()

    send(node, pieces())


def batch(mirror: Paced) -> Cost:
    """Return the cost of a mirror's next batch."""
    return cost(mirror.batch)


class Yardsticks:
    """Spark's own ways to read, write and merge the same rows."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.table = folder / "delta"

    def parquet(self, files: Sequence[str]) -> Cost:
        """Read some Parquet files and write their rows to others."""
        target = str(self.folder / "copy")
        return cost(lambda: self.spark.read.parquet(*files).write.mode("overwrite").parquet(target))

    def begin(self, files: Sequence[str]) -> None:
        """Make a plain Delta table of some files' rows."""
        self.spark.read.parquet(*files).write.format("delta").mode("overwrite").save(str(self.table))

    def merge(self, files: Sequence[str]) -> Cost:
        """MERGE some files' rows into that table: all columns, on the key, nothing else."""
        self.spark.read.parquet(*files).createOrReplaceTempView("changes")
        text = f"MERGE INTO delta.`{self.table}` t USING changes s ON t.key = s.key"
        return cost(lambda: self.spark.sql(f"{text} WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"))


def files_of(mirror: Paced) -> list[str]:
    """Return the data files of a mirror's table."""
    mirror.sink.refresh()
    return [mirror.sink.store.full(file.path) for file in mirror.sink.log.state.files.values()]


@contextmanager
def folder(name: str) -> Iterator[Path]:
    """Make a temporary folder for the block; yield its path."""
    with tempfile.TemporaryDirectory(prefix=f"headwater-bench-{name}-") as made:
        yield Path(made)


ENGINES = ("Spark", "local")


def large(spark: Any, wish: argparse.Namespace) -> None:
    """Measure the insert of all rows into an empty table, and then an overwrite of all."""
    rng = np.random.default_rng(2013)
    kinds = ("insert", "upsert")
    ours: dict[tuple[str, str], list[Cost]] = {(engine, kind): [] for engine in ENGINES for kind in kinds}
    copies: dict[str, list[Cost]] = {kind: [] for kind in kinds}
    merges: list[Cost] = []
    for number in range(-1, wish.rounds):  # the first is for the compilers and caches, and shorter
        rows = wish.rows if number >= 0 else max(wish.rows // 10, 1000)
        with folder("large") as place, testing.node(vbuckets=VBUCKETS) as node:
            yardsticks = Yardsticks(spark, place)
            order = ENGINES if number % 2 else ENGINES[::-1]
            for kind, cost_of in _large_round(spark, node, rows, rng, yardsticks, order=order):
                name = " ".join(kind) if isinstance(kind, tuple) else f"yardstick {kind}"
                print(f"  {rows:,} rows, {name}: {cost_of.wall:.3g} s, {cost_of.cpu:.3g} CPU s", flush=True)
                if number < 0:
                    continue
                if kind == "merge":
                    merges.append(cost_of)
                elif isinstance(kind, tuple):
                    ours[kind].append(cost_of)
                else:
                    copies[kind].append(cost_of)
    for engine in ENGINES:
        for kind, wanted in (("insert", 0.8), ("upsert", 0.7)):
            name = f"{kind} of {wish.rows:,} rows, {engine}"
            beside(name, ours[engine, kind], ("Spark Parquet to Parquet", copies[kind]), wanted)
        beside(f"upsert of {wish.rows:,} rows, {engine}", ours[engine, "upsert"], ("plain Delta MERGE", merges), 8, 12)


def _large_round(
    spark: Any, node: Node, rows: int, rng: np.random.Generator, yardsticks: Yardsticks, *, order: Sequence[str]
) -> Iterator[tuple[Any, Cost]]:
    # A first batch of two tasks, so that all workers are warm; all but two vbuckets are untouched by it.
    load(node, few_vbuckets(), rng)
    mirrors = {
        engine: Paced(session, node.url, yardsticks.folder / engine)
        for engine, session in zip(ENGINES, (spark, None), strict=True)
    }
    try:
        for mirror in mirrors.values():
            mirror.wait()
        before = set(files_of(mirrors["Spark"]))
        for kind in ("insert", "upsert"):
            load(node, requests(rows), rng)
            for engine in order:
                yield (engine, kind), batch(mirrors[engine])
            files = set(files_of(mirrors["Spark"])) - before
            before |= files
            yield kind, yardsticks.parquet(sorted(files))
            if kind == "insert":
                yardsticks.begin(sorted(files))
        yield "merge", yardsticks.merge(sorted(files))
    finally:
        for mirror in mirrors.values():
            mirror.close()


def kafka(spark: Any, wish: argparse.Namespace) -> None:
    """Measure an overwrite of all rows: by the mirror, and by a broker, Spark's Kafka source and a MERGE beside it."""
    ours: dict[str, list[Cost]] = {engine: [] for engine in ENGINES}
    theirs: list[Cost] = []
    for name, found in _kafka_rounds(spark, wish):
        print(f"  {wish.rows:,} rows, {name}: {found.wall:.3g} s, {found.cpu:.3g} CPU s", flush=True)
        ours.get(name, theirs).append(found)
    yardstick = "Spark's Kafka source and MERGE"
    for engine in ENGINES:  # the first upsert is for compilers and caches
        beside(f"upsert of {wish.rows:,} rows, {engine}", ours[engine][1:], (yardstick, theirs[1:]), 5)


def _kafka_rounds(spark: Any, wish: argparse.Namespace) -> Iterator[tuple[str, Cost]]:
    rng = np.random.default_rng(2013)
    with ExitStack() as stack:
        place = stack.enter_context(folder("kafka"))
        node = stack.enter_context(testing.node(vbuckets=VBUCKETS))
        address = stack.enter_context(broker(place))
        load(node, requests(wish.rows), rng)
        mirrors: dict[str, Paced] = {}
        for engine, session in zip(ENGINES, (spark, None), strict=True):
            mirrors[engine] = stack.enter_context(closing(Paced(session, node.url, place / engine)))
            mirrors[engine].wait()
        before = set(files_of(mirrors["Spark"]))
        publish_rows(spark, address, sorted(before))
        merged = stack.enter_context(closing(KafkaMerge(spark, address, place)))
        merged.wait()
        for number in range(wish.rounds + 1):
            load(node, requests(wish.rows), rng)
            for engine in ENGINES if number % 2 else ENGINES[::-1]:
                yield engine, batch(mirrors[engine])
            files = set(files_of(mirrors["Spark"])) - before
            before |= files
            publish_rows(spark, address, sorted(files))
            yield "Kafka and MERGE", merged.batch()
        if merged.rows() != wish.rows:
            raise AssertionError(f"{merged.rows():,} rows were merged, {wish.rows:,} are wanted")


def small(spark: Any, wish: argparse.Namespace) -> None:
    """Measure batches of a thousand changes, into tables of two sizes."""
    medians: dict[tuple[str, int], float] = {}
    for rows in (wish.rows, wish.large):
        if not rows:
            continue
        with folder("small") as place, testing.node(vbuckets=VBUCKETS) as node:
            rng = np.random.default_rng(2013)
            load(node, requests(rows), rng)
            for engine, session, wanted in (("local", None, 0.1), ("Spark", spark, 0.5)):
                count = wish.batches if rows == wish.rows else wish.batches // 5
                count = count if session is None else max(count // 5, 3)
                medians[engine, rows] = _small_batches(
                    Paced(session, node.url, place / engine), node, (engine, rows, count, wanted), rng
                )
            if rows == wish.rows:
                _small_merge(spark, place, rng)
    for engine in ENGINES:
        if wish.large and medians.get((engine, wish.large)):
            ratio = medians[engine, wish.large] / medians[engine, wish.rows]
            verdict = "met" if ratio <= 2.5 else "MISSED"
            sizes = f"p50 into {wish.large:,} rows over p50 into {wish.rows:,}"
            print(f"{engine}: {sizes}: {ratio:.2f}; wanted 2.5: {verdict}", flush=True)


def _small_batches(mirror: Paced, node: Node, what: tuple[str, int, int, float], rng: np.random.Generator) -> float:
    engine, rows, count, wanted = what
    seconds: list[float] = []

    def run() -> None:
        for _ in range(count):
            load(node, requests(rows), rng, rng.choice(rows, 1000, replace=False))
            durable = time.perf_counter()
            seconds.append(mirror.batch() - durable)

    try:
        mirror.wait()
        for _ in range(3):
            load(node, requests(rows), rng, rng.choice(rows, 1000, replace=False))
            mirror.batch()
        whole = cost(run)
        files = len(files_of(mirror))
    finally:
        mirror.close()
    p50, p99 = statistics.median(seconds), sorted(seconds)[min(int(0.99 * count), count - 1)]
    name = f"1,000 changes into {rows:,} rows, {engine}, p50 of {count}"
    note = f"p99 {p99:.3g} s is {p99 / p50:.1f} of p50, wanted 5: {'met' if p99 <= 5 * p50 else 'MISSED'}"
    note += f"; longest {max(seconds):.3g} s; {files} files at the end"
    met = p50 <= wanted if rows <= 1_000_000 else None
    alone(name, Cost(p50, whole.cpu / count), f"{wanted} s", met, note)
    return p50


def _small_merge(spark: Any, place: Path, rng: np.random.Generator) -> None:
    """Measure the yardstick of small batches: the same number of changes, merged by Delta."""
    table = place / "Spark"
    yardsticks = Yardsticks(spark, place)
    spark.read.format("delta").load(str(table)).write.format("delta").save(str(yardsticks.table))
    changes = str(place / "changes")
    costs = []
    for _ in range(3):
        rows = spark.read.format("delta").load(str(table)).sample(0.05, seed=int(rng.integers(1 << 30))).limit(1000)
        rows.write.mode("overwrite").parquet(changes)
        costs.append(yardsticks.merge([changes]))
    alone("the same by a plain Delta MERGE", median(costs[1:]), "", None)


def mirror_once(node: Node, place: Path, engine: str) -> Callable[[], None]:
    """Return a function that runs the command `headwater mirror --once`."""
    command = [sys.executable, "-m", "headwater", "mirror", node.url, "--to", str(place), "--once"]
    arguments = [*command, "--engine", engine.lower(), "--progress", "none"]
    return lambda: subprocess.run(arguments, check=True) and None


def bare_session() -> None:
    """Run the yardstick of a start: a Spark session that counts one row."""
    text = (
        f"from pyspark.sql import SparkSession as S; s = S.builder.master('{CORES}').getOrCreate(); s.range(1).count()"
    )
    subprocess.run([sys.executable, "-c", f"{text}; s.stop()"], check=True, stderr=subprocess.DEVNULL)


def starts(spark: Any, wish: argparse.Namespace) -> None:
    """Measure `headwater mirror --once` from its start to its end, into an empty table and with nothing to do."""
    rng = np.random.default_rng(2013)
    costs: dict[str, list[Cost]] = {}
    with folder("starts") as place, testing.node(vbuckets=VBUCKETS) as node:
        load(node, requests(wish.rows), rng)
        for number in range(wish.rounds):
            for engine in ENGINES:
                table = place / f"{engine}-{number}"
                run = mirror_once(node, table, engine)
                costs.setdefault(f"{engine} into an empty table", []).append(cost(run))
                costs.setdefault(f"{engine} with nothing to do", []).append(cost(run))
                shutil.rmtree(table)
            costs.setdefault("bare", []).append(cost(bare_session))
    bare = median(costs["bare"])
    for engine, idle, full in (("Spark", 10.0, 15.0), ("local", 1.5, 4.0)):
        for what, wanted in (("with nothing to do", idle), ("into an empty table", full)):
            found = costs[f"{engine} {what}"]
            rows = f"{wish.rows:,} rows " if "empty" in what else ""
            note = f"rounds {', '.join(f'{each.wall:.3g}' for each in found)}"
            note += f"; a bare Spark session {bare.wall:.3g} s, {bare.cpu:.3g} CPU s"
            ours = median(found)
            alone(f"--once {rows}{what}, {engine}", ours, f"{wanted} s", ours.wall <= wanted, note)


def ids(spark: Any, wish: argparse.Namespace) -> None:
    """Measure a table whose rows keep their ids beside one whose rows do not."""
    rng, costs = np.random.default_rng(2013), dict[tuple[str, bool], list[Cost]]()
    keys = requests(wish.rows)
    for number in range(-1, wish.rounds):  # the first is for the compilers and caches
        with folder("ids") as place, testing.node(vbuckets=VBUCKETS) as node:
            for kind, which in _id_rounds(rng, wish.rows):
                if kind != "fold":
                    load(node, keys, rng, which)
                for kept in (True, False) if number % 2 else (False, True):
                    spent = cost(partial(_id_round, node.url, str(place / f"{kept}"), kind, kept=kept))
                    if number >= 0:
                        costs.setdefault((kind, kept), []).append(spent)
    for kind in dict.fromkeys(kind for kind, _ in costs):
        name = f"{kind} with ids, {wish.rows:,} rows"
        beside(name, costs[kind, True], ("without", costs[kind, False]), *IDS_WISHES.get(kind, ()))


IDS_WISHES = {"upsert": (0.9, 1 / 1.05)}
"""A table without ids takes at least so many times the seconds, on the clock and of CPU: ids cost 5 % at most."""


def _id_rounds(rng: np.random.Generator, rows: int) -> Iterator[tuple[str, NDArray[Any] | None]]:
    yield from (("insert", None), ("upsert", None), ("upsert", None))
    yield from (("small batch", rng.choice(rows, 1000)) for _ in range(10))
    yield "fold", None


def _id_round(url: str, place: str, kind: str, *, kept: bool) -> None:
    if kind == "fold":
        tables.fold(place, lambda done, total: None, everything=True)
    else:
        mirror(None, url, place, once=True, workers=0, row_ids=kept, upkeep=False)


def source(spark: Any, wish: argparse.Namespace) -> None:
    """Measure the rows a second that Spark reads from the source, with few columns and with all, and from a source that
    has the batches ready.
    """
    rows = max(wish.rows, 2_000_000) if wish.rows >= 1_000_000 else wish.rows
    with folder("source") as place, testing.node(vbuckets=VBUCKETS) as node:
        load(node, requests(rows), np.random.default_rng(2013))
        prepare(spark, node.url, place)
        spark.dataSource.register(ready_source(place))
        frames = {
            (name, kind): (spark.read.schema(FEW) if kind == "few" else spark.read).format(name).load(node.url)
            for name in ("dcp", "ready")
            for kind in ("few", "all")
        }
        costs: dict[tuple[str, str], list[Cost]] = {each: [] for each in frames}
        for number in range(-2, wish.rounds):
            for each, frame in frames.items():
                found = cost(lambda frame=frame: frame.write.format("noop").mode("append").save())
                if number >= 0:
                    costs[each].append(found)
    few = f"key, value and seqno, {rows:,} rows"
    beside(f"source to noop, {few}", costs["dcp", "few"], ("all columns", costs["dcp", "all"]), 1.7)
    beside(f"batches ready in memory to noop, {few}", costs["ready", "few"], ("all columns", costs["ready", "all"]))
    beside(f"source to noop, {few}", costs["dcp", "few"], ("batches ready in memory", costs["ready", "few"]))


def demo(spark: Any, wish: argparse.Namespace) -> None:
    """Measure the whole demo."""
    with folder("demo") as place:
        command = [sys.executable, "-m", "headwater", "demo"]
        found = cost(lambda: subprocess.run(command, check=True, cwd=place, stdout=subprocess.DEVNULL))
    alone("demo", found, "60 s", found.wall <= 60)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_lake", description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the large batches and of the table")
    parser.add_argument(
        "--large", type=int, default=0, help="rows of a second table for small batches, such as 10000000"
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    parser.add_argument("--batches", type=int, default=1000, help="small ones of the local engine; Spark does a fifth")
    parser.add_argument("--only", default=",".join(SECTIONS), help="which sections, parted by commas")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] = ()) -> None:
    """Measure the parts that the options choose."""
    wish = parsed(arguments)
    adopt_orphans()
    chosen = wish.only.split(",")
    spark = None
    if {"large", "small", "kafka", "source"} & set(chosen):
        packages = {"spark.jars.packages": f"{DELTA},{SOURCE}"} if "kafka" in chosen else {}
        spark = local_session("headwater-bench", cores=CORES, memory="4g", settings=packages, quiet=True)
    try:
        for name in chosen:
            _WORK[name](spark, wish)
    finally:
        if spark is not None:
            spark.stop()


_WORK = dict(zip(SECTIONS, (large, small, kafka, starts, ids, source, demo), strict=True))


if __name__ == "__main__":
    main(sys.argv[1:])
