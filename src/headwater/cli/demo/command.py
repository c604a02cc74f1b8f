"""`headwater demo`: the options, and the outcome as an exit status."""

from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from headwater.cli.demo.contents import READERS, TableFormat
from headwater.cli.options import examples
from headwater.errors import OptionError

PART = ("first", 90)
EXAMPLES = examples(
    "headwater demo",
    "headwater demo --rows 20000 --rounds 3",
    "headwater demo --keep ./demo-data",
    "headwater demo --format iceberg",
    "headwater demo failover",
)
EXITS = {0: "node and table are equal, key by key", 1: "anything differs"}


class StoryName(StrEnum):
    """The stories of the demo."""

    FLIGHTS = "flights"
    FAILOVER = "failover"


ROUNDS, SHARE, SEED, REPORT = 6, 0.02, 2013, Path("artifacts/demo")
LIBRARIES: Final[dict[StoryName, tuple[str, ...]]] = {
    StoryName.FLIGHTS: ("pyroaring", "matplotlib"),
    StoryName.FAILOVER: ("pyroaring",),
}


def demo(
    story: Annotated[StoryName, typer.Argument(metavar="STORY", help="Which of the two above.")] = (StoryName.FLIGHTS),
    rows: Annotated[
        int | None, typer.Option("--rows", min=100, metavar="COUNT", help="Use only so many of the 336,776 flights.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, metavar="COUNT", help="Rounds of changes.")] = ROUNDS,
    share: Annotated[
        float, typer.Option("--share", min=0.001, max=0.5, metavar="SHARE", help="Documents changed in each round.")
    ] = SHARE,
    seed: Annotated[
        int, typer.Option("--seed", metavar="NUMBER", help="Another seed, other documents changed.")
    ] = SEED,
    report: Annotated[
        Path, typer.Option("--report", metavar="DIR", help="Where report.html and summary.json go.")
    ] = REPORT,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Keep store, table and logs here (must not exist).")
    ] = None,
    form: Annotated[
        TableFormat,
        typer.Option("--format", help="Of the table, which delta-rs reads at the end, or DuckDB one of Iceberg."),
    ] = TableFormat.DELTA,
) -> None:
    """Tell a story with real nodes and a mirror, and compare node and table key by key at its end.

    flights: load a year of New York flights, change, delete and expire them under a running mirror, kill the node on
    the way.

    failover: two nodes without Spark; the active one is cut off from its replica, takes writes and dies. The replica is
    promoted and written to. Shows the rows that were undone. Has no option but --keep and --format.

    Exit status 1, and no nice words, if anything differs.
    """
    if story is StoryName.FAILOVER:
        _only_of_flights({"rows": (rows, None), "rounds": (rounds, ROUNDS), "share": (share, SHARE)})
        _only_of_flights({"seed": (seed, SEED), "report": (report, REPORT)})
    _check_libraries((*LIBRARIES[story], READERS[form], *(("fastavro",) if form is TableFormat.ICEBERG else ())))
    if story is StoryName.FAILOVER:
        from headwater.cli.demo import failover

        failover.tell(keep, form)
        return
    from headwater.cli.demo.story import StoryPlan, tell

    tell(StoryPlan(rows=rows, rounds=rounds, share=share, seed=seed, report=report, keep=keep, form=form))


def _only_of_flights(options: dict[str, tuple[object, object]]) -> None:
    """Refuse options that the other story would ignore; each is given with its default.

    Raises: OptionError.
    """
    for name, (value, default) in options.items():
        if value != default:
            raise OptionError(name, str(value), "possible with failover, which has no option but --keep and --format")


def _check_libraries(modules: tuple[str, ...]) -> None:
    """Check that libraries are installed, before minutes are spent.

    Raises: ModuleNotFoundError.
    """
    for name in modules:
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
