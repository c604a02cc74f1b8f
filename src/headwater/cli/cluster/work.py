"""Commands of operators' work (cluster/work/): their options in typer's form, and the function that runs them."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Annotated, Any, ClassVar

import typer

from headwater.cli.cluster.running import (
    FIRST_START_SECONDS,
    Node,
    Password,
    StopRequest,
    User,
    Yes,
    addresses,
    agreed,
    run,
    table_of,
)
from headwater.cli.commands import CommandWithForms, Parameter, parameter_of
from headwater.cli.forms import answer, ask, forms, report
from headwater.cli.meter import Meter
from headwater.cli.options import DEFAULT_URL, DryRun, NodeUrl, examples, paragraphs
from headwater.cli.screen import out, rate
from headwater.cluster.work import NODE, DeclaredWork, WorkOutcome, WorkPlan, WorkRun

__all__ = ["NODE_ARGUMENT", "NODE_OPTION", "WorkCommand", "add_work", "show_plan", "work_of"]

NODE_ARGUMENT: Parameter = ("node", Node, ...)
NODE_OPTION: Parameter = ("node", NodeUrl, DEFAULT_URL)
SHOW_PLAN = Annotated[bool, typer.Option("--dry-run", help="Show the plan, do nothing.")]


class WorkCommand(CommandWithForms):
    """The command of one kind of work.

    Attributes:
        node: the parameter with the first node to ask; None if the work has only its own nodes.
    """

    work: ClassVar[type[DeclaredWork]]
    node: ClassVar[Parameter | None]

    def declared(self) -> list[Parameter]:
        """Return the work's options, and those of its start (--yes, --dry-run and the like)."""
        parameters = [parameter_of(option) for option in self.work.options()]
        if self.work.HAS_DRY_RUN:
            parameters.append(("dry_run", SHOW_PLAN if self.work.SHOWS_PLAN else DryRun, False))
        if self.work.ASKS:
            parameters.append(("yes", Yes, False))
        if self.node is not None:
            parameters.insert(0 if self.node is NODE_ARGUMENT else len(parameters), self.node)
        return [*parameters, ("user", User, None), ("password", Password, None)]

    def perform(self, ctx: Any) -> None:
        """Show the plan, ask, do the work and report the outcome."""
        values = ctx.params
        work = work_of(self.work, values)
        seeds, place = addresses(values["nodes"] if "nodes" in values else [values["node"]])

        def on_nodes(do: Callable[[Any, StopRequest], Any], *, is_patient: bool) -> Any:
            seconds = FIRST_START_SECONDS if is_patient else None
            return run(do, place, values["user"], values["password"], answer_seconds=seconds)

        plan: WorkPlan | None = None
        if work.SHOWS_PLAN or work.ANNOUNCES or values.get("dry_run"):
            plan = on_nodes(lambda members, _: work.plan(members, seeds), is_patient=work.is_patient)
        if not _is_agreed(work, plan, dry_run=values.get("dry_run", False), yes=values.get("yes", True)):
            return
        with Meter(WorkRun().now, work.UNIT) if work.UNIT else nullcontext() as meter:

            async def do(members: Any, stop: StopRequest) -> WorkOutcome | None:
                stop.gently = bool(work.UNIT)
                outcome = await work.run(members, seeds, WorkRun(plan=plan, stop=stop, report=_drawn_by(meter)))
                return None if outcome.state == "stopped" else outcome  # run() ends the command by the signal

            outcome = on_nodes(do, is_patient=work.is_patient and not work.SHOWS_PLAN)
        _report(outcome, plan, meter)


def _is_agreed(work: DeclaredWork, plan: WorkPlan | None, *, dry_run: bool, yes: bool) -> bool:
    """Show the plan, if there is one, and ask; return False if there is nothing to do."""
    if work.SHOWS_PLAN and plan is not None:
        return agreed(plan, show_plan, work.question, dry_run=dry_run, yes=yes)
    if plan is not None and dry_run:
        answer("\n".join(plan.lines), **plan.facts)
        return False
    for line in () if plan is None or forms().json else plan.lines:
        report(line)
    ask(work.question, yes)
    return True


def _drawn_by(meter: Meter | None) -> Callable[[WorkRun], None]:
    return lambda run: None if meter is None else meter.show(run.done, run.total, name=run.now)


def _report(outcome: WorkOutcome, plan: WorkPlan | None, meter: Meter | None) -> None:
    line, facts = outcome.line, dict(outcome.facts)
    if plan is not None:
        facts = {"begun": True, **plan.facts, **facts}
    if meter is not None and plan is not None:
        seconds = meter.seconds
        line = f"done in {seconds:.1f} s, {rate(plan.amount, seconds, meter.unit)}, map {facts['map']}"
        facts["seconds"] = round(seconds, 3)
    (answer if outcome.is_answer else report)(line, **facts)
    _print(outcome.details)


def show_plan(plan: WorkPlan) -> None:
    """Print a plan: a table with a line for each node, then its remarks."""
    table = table_of(plan.title, *plan.heading[1:])
    for row in plan.rows:
        table.add_row(*row)
    out().print(table)
    _print(plan.lines)


def _print(lines: tuple[str, ...]) -> None:
    for line in () if forms().json else lines:
        out().print(line)


def work_of(kind: type[DeclaredWork], values: dict[str, Any]) -> DeclaredWork:
    """Make work of the options on the command line; the others have their declared defaults. Raises OptionError."""
    fields = {}
    for option in kind.options():
        if (value := values[option.field]) is None or (option.many and not value):
            continue
        if option.metavar == NODE:
            nodes = addresses(value if option.many else [value])[0]
            value = tuple(nodes) if option.many else nodes[0]
        elif option.many:
            value = tuple(map(option.kind, value))
        elif option.read is not None:
            value = option.parse(value, f"--{option.name}")
        fields[option.field] = value
    return kind(**fields)


def add_work(group: typer.Typer, kind: type[DeclaredWork], node: Parameter | None, part: str | None = None) -> None:
    """Add the command of one kind of work to a group of commands, or to a part of all commands."""

    def command() -> None:
        """Do nothing: `perform` runs the work."""

    group.command(
        kind.KIND.rpartition("-")[2],
        cls=type(f"{kind.__name__}Command", (WorkCommand,), {"work": kind, "node": node}),
        help=paragraphs(kind.__doc__),
        epilog=examples(*kind.EXAMPLES),
        rich_help_panel=part,
    )(command)
