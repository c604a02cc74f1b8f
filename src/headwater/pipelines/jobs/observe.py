"""The observer, as users see it: its options, its progress and its lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from headwater.options import SECONDS, option
from headwater.pipelines.jobs.declared import FromNow, JobProgress, OnEngines, check_states, losses_line

KINDS = ("stored", "deleted", "expired", "bytes")


@dataclass
class ObserveProgress(JobProgress):
    """The numbers of an observer, reported after each batch.

    Attributes:
        changes: changes that this run counted.
        late: changes of all runs whose window was closed already.
        unclocked: changes of all runs whose CAS is no time.
        windows: windows that this run closed.
        closed: windows that this batch closed, the oldest first, in the form of `observe.described`.
        newest: the newest open window, in the same form; None for none.
    """

    ROWS: ClassVar[tuple[str, ...]] = ("changes", "late", "unclocked")

    changes: int = 0
    late: int = 0
    unclocked: int = 0
    windows: int = 0
    closed: list[dict[str, Any]] = field(default_factory=list)
    newest: dict[str, Any] | None = None


@dataclass
class Observer(OnEngines[ObserveProgress], FromNow[ObserveProgress]):
    """Count what is written to a bucket in windows of time, by prefix of the key: stores, deletions, expirations,
    bytes, and the keys that change most.

    Of the default collection, unless others are chosen; then prefixes and keys stand behind the name of their
    collection, and rates are told for each collection too.

    A terminal shows a live table; elsewhere each window that closes is a line for each prefix. Time is that of the
    changes' CAS, the nodes' clock.
    """

    NAME: ClassVar[str] = "observe"
    WORK: ClassVar[str] = "headwater.pipelines.observe:work"
    PROGRESS = ObserveProgress
    DONE: ClassVar[str] = "counted"
    EXAMPLES: ClassVar[tuple[str, ...]] = (
        "headwater observe couchbase://127.0.0.1:11210/default",
        "headwater observe couchbase://10.0.0.7/users --window 60 --delay 30 --to ./users-rates"
        " --checkpoint ./users-state",
        "headwater observe couchbase://10.0.0.7/users --separator / --depth 2 --keys-only --progress json",
        "headwater observe couchbase://10.0.0.7/store --collections all",
    )

    source: str = option(..., "couchbase://HOST:PORT/BUCKET", positional=True, metavar="URL", env="HEADWATER_NODE")
    _: KW_ONLY
    window_seconds: int = option(10, "Length of a window.", flag="window", unit=SECONDS, least=1)
    delay_seconds: int = option(5, "How long a window waits for what comes late.", flag="delay", unit=SECONDS, least=0)
    separator: str = option(":", "Ends the prefix of a key.", metavar="TEXT")
    depth: int = option(1, "Separators in a prefix.", metavar="N", least=1)
    hot: int = option(10, "Hottest keys to tell.", metavar="N", least=0, most=100)
    keys_only: bool = option(False, "Let no value leave a node; sizes are those of keys then.")
    to: str | None = option(None, "Keep closed windows there, as Parquet; or a URL.", metavar="DIR")
    checkpoint: str | Path | None = option(None, "Go on from there, if ended, another time.", metavar="DIR")
    prefixes_max: int = 1000
    """Different prefixes of a window; what goes beyond is counted under `…`."""

    def check(self) -> None:
        """Check each option. Raises OptionError."""
        super().check()
        check_states(self, "an observation", "a change that a failover takes back was made, and stays counted")

    def line(self, progress: ObserveProgress) -> str:
        """Return a line for each prefix of the windows that a batch closed, and one for their hot keys."""
        if not progress.closed:
            return ""
        lines = losses_line(progress.data_loss, "so the rates lack them")
        return "\n".join([*lines, *(line for window in progress.closed for line in _lines(window))])


def _lines(window: dict[str, Any]) -> Iterator[str]:
    for name, counts in (*window.get("collections", {}).items(), *window["prefixes"].items()):
        numbers = ", ".join(f"{counts[kind]:,} {kind}" for kind in KINDS)
        yield f"{window['window']}  {name or '(none)'}  {numbers}"
    if window["hot"]:
        yield f"{window['window']}  hot: " + ", ".join(f"{hot['key']} {hot['changes']:,}" for hot in window["hot"])
