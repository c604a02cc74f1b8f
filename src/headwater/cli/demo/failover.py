"""The demo of a failover: a mirror's rows of a lost branch are undone, row by row, and shown.

    node A, replica B -> mirror -> A cut off from B, and written to -> the table has it -> A dies, B is promoted -> the
    rows that are undone -> B is written to -> node and table compared

Every step of the operator is a real command, in a process of its own.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.cli.demo import contents
from headwater.cli.demo.compare import compare
from headwater.cli.demo.contents import TableFormat
from headwater.cli.demo.mirroring import MirrorProcess
from headwater.cli.demo.steps import step
from headwater.cli.failures import CommandError
from headwater.cli.forms import answer, forms
from headwater.cli.screen import count, out, several

if TYPE_CHECKING:
    from headwater.testing import Node

VBUCKETS = 16
DOCUMENTS = 2000
OVERWRITTEN, DELETED, ADDED, LATER = range(100), range(100, 150), range(50), range(40)
PATIENCE_SECONDS, LOOK_SECONDS = 120.0, 0.1
SHOWN_MAX = 3

Documents = Mapping[bytes, bytes]


def tell(keep: Path | None, form: TableFormat = TableFormat.DELTA) -> None:
    """Run the story.

    Args:
        keep: the folder in which stores, table and logs stay; None to remove them.
        form: of the table.

    Raises:
        CommandError: node and table differ, a command failed, or the mirror does not catch up in time.
    """
    with ExitStack() as stack:
        if keep is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headwater-demo-")))
        else:
            keep.mkdir(parents=True)
            folder = keep
        _Story(folder, form).run(stack)


@dataclass(frozen=True, slots=True)
class RolledBackRows:
    """The rows of a table that a rollback changed.

    Attributes:
        removed: keys that only the lost branch had.
        restored: keys that it had overwritten, and their values before and after.
        returned: keys that it had deleted.
    """

    removed: tuple[bytes, ...]
    restored: tuple[tuple[bytes, bytes, bytes], ...]
    returned: tuple[bytes, ...]


def undone(before: Documents, after: Documents) -> RolledBackRows:
    """Return the difference of a table before and after a rollback."""
    both = before.keys() & after.keys()
    return RolledBackRows(
        removed=tuple(sorted(before.keys() - after.keys())),
        restored=tuple((key, before[key], after[key]) for key in sorted(both) if before[key] != after[key]),
        returned=tuple(sorted(after.keys() - before.keys())),
    )


def show(difference: RolledBackRows) -> list[str]:
    """Return the undone rows as lines, the first few of each kind."""
    kinds = (
        ("only the lost branch had", [_text(key) for key in difference.removed]),
        (
            "it had overwritten",
            [f"{_text(key)}: {_text(old)} is {_text(new)} again" for key, old, new in difference.restored],
        ),
        ("it had deleted", [_text(key) for key in difference.returned]),
    )
    lines = []
    for kind, rows in kinds:
        lines.append(f"  {several(len(rows), 'row')} {kind}")
        lines += [f"    {row}" for row in rows[:SHOWN_MAX]] + ["    ..."] * (len(rows) > SHOWN_MAX)
    return lines


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


class _Story:
    """A run of the story."""

    def __init__(self, folder: Path, form: TableFormat) -> None:
        self._folder, self._table, self._form = folder, folder / "table", form

    def run(self, stack: ExitStack) -> None:
        """Run the steps, each a line on the screen."""
        first, second = self._start(stack)
        url = f"couchbase://{first.address},{second.address}/default"
        options = ("--engine", "local", "--changelog", "--format", self._form)
        mirror = stack.enter_context(MirrorProcess(url, self._table, self._folder / "mirror.log", *options))
        with step(f"mirror into {self._form.table}") as note:
            self._catch_up(first, mirror)
            note(f"{count(mirror.changes)} changes")
        self._cut_off(first, second, mirror)
        rows_before = contents.of_table(self._table, self._form)
        self._fail_over(first, second)
        with step("the mirror follows") as note:
            self._catch_up(second, mirror, lambda: mirror.rollbacks > 0)
            note(f"{several(mirror.rollbacks, 'vbucket')} rolled back, each in one commit with what it has now")
        out().print("undone in the table:")
        out().print("\n".join(show(undone(rows_before, contents.of_table(self._table, self._form)))), markup=False)
        with step("write to B") as note, second.client() as client:
            client.set_many((f"order:{i}", "again") for i in LATER)
            client.set_many((f"new:{i}", "of B") for i in LATER)
            note(several(2 * len(LATER), "document"))
        with step("wait for the mirror") as note:
            self._catch_up(second, mirror)
            note(f"{count(mirror.changes)} changes in {mirror.batches} batches")
        mirror.stop()
        self._judge(second)

    def _start(self, stack: ExitStack) -> tuple["Node", "Node"]:
        from headwater import testing

        with step("start node A and its replica B") as note:
            options: dict[str, object] = {"vbuckets": VBUCKETS}
            first = testing.Node(self._folder / "A", options).start()
            stack.callback(first.kill)
            second = testing.Node(self._folder / "B", options | {"vbucket_state": "none"}).start()
            stack.callback(second.kill)
            note(f"{first.address}, {second.address}, {VBUCKETS} vbuckets")
        with step("load documents into A") as note, first.client() as client:
            client.set_many((f"order:{i}", "kept") for i in range(DOCUMENTS))
            note(f"{count(DOCUMENTS)} documents")
        return first, second

    def _cut_off(self, first: "Node", second: "Node", mirror: MirrorProcess) -> None:
        with step("let B follow A, then cut it off") as note:
            self._headwater("replicate", first.address, second.address, "--once")
            note("B has what A has, and hears nothing any more")
        with step("write to A") as note, first.client() as client:
            client.set_many((f"order:{i}", "lost") for i in OVERWRITTEN)
            client.delete_many(f"order:{i}" for i in DELETED)
            client.set_many((f"lost:{i}", "of A") for i in ADDED)
            note(f"{len(OVERWRITTEN)} overwritten, {len(DELETED)} deleted, {len(ADDED)} added; the mirror reads them")
            self._catch_up(first, mirror)

    def _fail_over(self, first: "Node", second: "Node") -> None:
        with step("kill -9 A, promote B") as note:
            first.kill()
            output = self._headwater("failover", second.address, "--from", first.address, "--yes")
            note(output.splitlines()[-1])

    def _headwater(self, *words: str) -> str:
        """Run a command; return its output."""
        command = [sys.executable, "-m", "headwater", *words]
        process = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own interpreter
        if process.returncode:
            raise CommandError(f"headwater {' '.join(words)}: {(process.stderr or process.stdout).strip()}")
        return process.stdout.strip()

    @staticmethod
    def _catch_up(node: "Node", mirror: MirrorProcess, also: Callable[[], bool] = lambda: True) -> None:
        """Wait until the table holds every change of a node."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with node.client() as client:
            while True:
                mirror.check()
                lag = sum(client.seqnos().values()) - mirror.changes
                if not lag and also():
                    return
                if time.monotonic() > deadline:
                    raise CommandError(f"the table is {lag:,} changes behind after {PATIENCE_SECONDS:.0f} s")
                time.sleep(LOOK_SECONDS)

    def _judge(self, node: "Node") -> None:
        with step("compare key by key") as note, node.client() as client:
            comparison = compare(contents.of_node(client), contents.of_table(self._table, self._form))
            note(f"{count(comparison.left)} in B, {count(comparison.right)} in the table")
        if not comparison.equal:
            raise CommandError(f"the table differs from the node: {comparison.describe()}")
        out().print("[bold green]the table equals the node")
        if forms().json:
            answer("", equal=True, documents=comparison.left)
