"""The demo from beginning to end.

    flights -> node (all durable) -> mirror catches up -> rounds of changes, in one of them kill -9 -> all expired ->
    mirror catches up -> node, table and our own memory compared -> report

Three accounts of the same documents are kept apart: `traffic.expected` has the acknowledged changes, the node's is read
from its history by a fresh client, the table's by another implementation of Delta than the writer's.
"""

import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import headwater
from headwater.cli.demo import contents
from headwater.cli.demo.compare import Comparison, compare
from headwater.cli.demo.contents import TableFormat
from headwater.cli.demo.flights import read_flights
from headwater.cli.demo.mirroring import MirrorProcess
from headwater.cli.demo.report import write_report
from headwater.cli.demo.samples import Samples
from headwater.cli.demo.steps import step
from headwater.cli.demo.traffic import Round, Traffic
from headwater.cli.failures import CommandError
from headwater.cli.forms import answer, forms
from headwater.cli.screen import count, out, rate
from headwater.errors import TransportError

if TYPE_CHECKING:
    from headwater.testing import Node

LOOK_SECONDS = 0.25
PATIENCE_SECONDS = 300.0
KILL_AFTER_SECONDS = 0.05
VBUCKETS = 64
LOOKS_AT_THE_LOAD = 25


@dataclass(frozen=True, slots=True)
class StoryPlan:
    """A demo's parameters: see the options of `headwater demo`."""

    rows: int | None
    rounds: int
    share: float
    seed: int
    report: Path
    keep: Path | None
    form: TableFormat = TableFormat.DELTA


def tell(plan: StoryPlan) -> None:
    """Run the whole demo.

    Raises: CommandError when node and table differ, when an acknowledged change was lost, or when the mirror does not
    catch up in time.
    """
    with ExitStack() as stack:
        if plan.keep is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headwater-demo-")))
        else:
            plan.keep.mkdir(parents=True)
            folder = plan.keep
        Story(plan, folder).run(stack)


@dataclass(slots=True)
class Story:
    """A run of the demo."""

    plan: StoryPlan
    folder: Path
    samples: Samples = field(default_factory=lambda: Samples(time.monotonic))
    facts: dict[str, int | float | str] = field(default_factory=dict)

    def run(self, stack: ExitStack) -> None:
        """Run the steps, each a line on the screen and a number in the report."""
        from headwater import kernels, testing

        with step("compile the kernels") as note:
            kernels.warm()  # Spark's workers, each for itself, would otherwise do it while the clock runs
            note("done, or found in the cache")
        with step("read the flights") as note:
            traffic = Traffic(read_flights(self.plan.rows), Random(self.plan.seed))  # noqa: S311 (no secret)
            note(f"{count(len(traffic.expected))} documents")
        with step("start a node") as note:
            node = testing.Node(self.folder / "store", {"vbuckets": VBUCKETS, "expiry_pager_seconds": 1}).start()
            stack.callback(node.stop)
            note(f"{node.address}, {VBUCKETS} vbuckets, process {node.pid}")
        self._load(node, traffic)
        place, log = self.folder / "table", self.folder / "mirror.log"
        mirror = stack.enter_context(MirrorProcess(node.url, place, log, "--format", self.plan.form))
        with step(f"mirror into {self.plan.form.table}") as note:
            began = self.samples.seconds()
            self._watch(node, mirror, until=lambda: mirror.batches > 0)
            self.samples.waited = (began, self.samples.rows[-2].seconds)
            self._catch_up(node, mirror)
            seconds = self.samples.seconds() - began
            self.facts["seconds until the table was level, Spark's start included"] = seconds
            note(f"{count(mirror.changes)} changes in {seconds:.1f} s, Spark's start included")
        self._rounds(node, mirror, traffic)
        self._expire(node, mirror, traffic)
        with step("wait for the mirror") as note:
            seconds = self._catch_up(node, mirror)
            note(f"level after {seconds:.1f} s, {mirror.batches} micro-batches in all")
        mirror.stop()
        self._judge(node, traffic)

    def _load(self, node: "Node", traffic: Traffic) -> None:
        with step("load them") as note, node.client() as client:
            began, count = time.monotonic(), 0
            self.samples.begin()
            documents, size = list(traffic.expected.items()), max(1, len(traffic.expected) // LOOKS_AT_THE_LOAD)
            for some in (documents[at : at + size] for at in range(0, len(documents), size)):
                if errors := client.set_many(some):
                    raise CommandError(
                        f"the node refused {len(errors)} documents, the first: {next(iter(errors.values()))}"
                    )
                count += len(some)
                self.samples.add(count, 0)
            seconds = time.monotonic() - began
            self.facts |= {"documents loaded": len(traffic.expected), "loaded/s": len(traffic.expected) / seconds}
            note(f"durable at {rate(len(traffic.expected), seconds)}")
        self.samples.mark("loaded")

    def _rounds(self, node: "Node", mirror: MirrorProcess, traffic: Traffic) -> None:
        changes, seconds, crash = 0, 0.0, self.plan.rounds // 2
        for number in range(self.plan.rounds):
            if number == crash:
                self._crash(node, mirror, traffic)
                continue
            with step(f"round {number + 1} of {self.plan.rounds}") as note:
                plan = traffic.plan(self.plan.share)
                seconds += self._round(node, mirror, traffic, plan)
                changes += plan.changes
                note(_plan_text(plan))
        if seconds:
            self.facts |= {"changes in quiet rounds": changes, "changes/s": changes / seconds}

    def _round(self, node: "Node", mirror: MirrorProcess, traffic: Traffic, plan: Round) -> float:
        """Perform a round, let the mirror finish a micro-batch after it; return the seconds until all was
        durable.
        """
        began = time.monotonic()
        with node.client() as client:
            traffic.perform(client, node.url, plan)
        traffic.acknowledged(plan)
        seconds, batches_before = time.monotonic() - began, mirror.batches
        self._watch(node, mirror, until=lambda: mirror.batches > batches_before)
        return seconds

    def _crash(self, node: "Node", mirror: MirrorProcess, traffic: Traffic) -> None:
        """Kill the node in the middle of a round, start it again, check the acknowledged changes, finish the
        round.
        """
        plan = traffic.plan(self.plan.share)
        with step("kill -9 in the middle of a round") as note:
            cut = self._perform_and_kill(node, traffic, plan)
            began = time.monotonic()
            node.restart()
            self.samples.mark("kill -9, restart")
            state = "the round was cut short" if cut else "the round had just ended"
            note(f"{state}; ready again after {time.monotonic() - began:.2f} s")
        with step("look for what was acknowledged") as note, node.client() as client:
            planned_keys, documents = plan.keys(), contents.of_node(client)
            untouched = {key: value for key, value in traffic.expected.items() if key not in planned_keys}
            wrong_keys = [key for key, value in untouched.items() if documents.get(key) != value]
            if wrong_keys:
                raise CommandError(
                    f"{len(wrong_keys)} acknowledged documents are lost or wrong, the first: {wrong_keys[0].decode()}"
                )
            note(f"all {count(len(untouched))} are there")
        with step("perform that round again") as note:
            self._round(node, mirror, traffic, plan)
            note(_plan_text(plan))

    def _perform_and_kill(self, node: "Node", traffic: Traffic, plan: Round) -> bool:
        """Perform a round and kill the node; return True if the crash cut the round short."""
        timer = threading.Timer(KILL_AFTER_SECONDS, node.kill)
        try:
            with node.client() as client:
                timer.start()
                traffic.perform(client, node.url, plan)
        except TransportError:
            return True
        finally:
            timer.join()
        return False

    def _expire(self, node: "Node", mirror: MirrorProcess, traffic: Traffic) -> None:
        """Wait until the node has expired all documents that were given a second to live."""
        with step("let the rest expire") as note, node.client() as client:
            self._watch(node, mirror, until=lambda: int(client.stats()["curr_items"]) == len(traffic.expected))
            note(f"{count(len(traffic.expected))} documents are left")

    def _catch_up(self, node: "Node", mirror: MirrorProcess) -> float:
        """Wait until the table holds every change; return the seconds it took."""
        began = self.samples.seconds()
        self._watch(node, mirror, until=lambda: self.samples.rows[-1].lag == 0)
        return self.samples.seconds() - began

    def _watch(self, node: "Node", mirror: MirrorProcess, until: Callable[[], bool]) -> None:
        """Look at node and mirror now and then until the condition holds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with node.client() as client:
            while True:
                mirror.check()
                sample = self.samples.add(sum(client.seqnos().values()), mirror.changes)
                if until():
                    return
                if time.monotonic() > deadline:
                    raise CommandError(
                        f"the table is {count(sample.lag)} changes behind after {PATIENCE_SECONDS:.0f} s"
                    )
                time.sleep(LOOK_SECONDS)

    def _judge(self, node: "Node", traffic: Traffic) -> None:
        with step("compare key by key") as note:
            with node.client() as client:
                in_node = contents.of_node(client)
            in_table = contents.of_table(self.folder / "table", self.plan.form)
            memory, table = compare(traffic.expected, in_node), compare(in_node, in_table)
            note(f"{count(table.left)} in the node, {count(table.right)} in the table")
        self._report(memory, table)
        if not memory.equal:
            raise CommandError(f"the node is not what was acknowledged: {memory.describe()}")
        if not table.equal:
            raise CommandError(f"the table differs from the node: {table.describe()}")
        out().print("[bold green]the table equals the node")
        if forms().json:
            answer("", equal=True, report=str(self.plan.report), **self.facts)

    def _report(self, memory: Comparison, table: Comparison) -> None:
        verdict = "the table equals the node" if memory.equal and table.equal else "the table differs from the node"
        final = self.samples.rows[-1]
        lags = sorted(lag for _, lag in self.samples.lag_seconds())
        self.facts |= {
            "documents in the node": table.left,
            "documents in the table": table.right,
            "changes in all": final.node_changes,
            "lag, median, s": lags[len(lags) // 2],
            "longest lag, s": lags[-1],
            "seconds in all": self.samples.seconds(),
            "headwater": headwater.__version__,
            "machine": f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}",
            "when": datetime.now().astimezone().isoformat(" ", "seconds"),
        }
        page = write_report(self.plan.report, self.samples, self.facts, verdict)
        out().print(f"{'report':<36} {page}")


def _plan_text(plan: Round) -> str:
    return f"{count(len(plan.stored))} stored, {count(len(plan.deleted))} deleted, {count(len(plan.expiring))} expiring"
