"""Commands of jobs (pipelines/jobs/): a job's options in typer's form, and the function that runs them."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import typer

from headwater.cli import stopping
from headwater.cli.commands import CommandWithForms, Parameter, parameter_of
from headwater.cli.forms import answer, remark
from headwater.cli.options import check_answers, examples, paragraphs
from headwater.cli.reporting import IdleRun, MetricsPort, ProgressFormat, ProgressOption, metered, reporter
from headwater.cli.screen import out
from headwater.pipelines.jobs import DeclaredJob

__all__ = ["JobCommand", "Live", "add_job"]

Live = Callable[[], AbstractContextManager[Callable[[Any], None]]]
"""Makes the function that shows progress on a terminal, for a job whose progress is more than lines."""
REPORTING: list[Parameter] = [
    ("shown", ProgressOption, ProgressFormat.TEXT),
    ("metrics", MetricsPort, None),
]
"""The options for the reports of a job, which only the command line has; they come after the options for retries."""
BEFORE_REPORTING = "retry_seconds"


class JobCommand(CommandWithForms):
    """The command of a job."""

    job: ClassVar[type[DeclaredJob[Any]]]
    live: ClassVar[Any] = None
    """A Live, or None."""

    def declared(self) -> list[Parameter]:
        """Return the job's options, and those of its report."""
        parameters: list[Parameter] = []
        for option in self.job.options():
            parameters.append(parameter_of(option, done=self.job.DONE))
            parameters += REPORTING if option.field == BEFORE_REPORTING else []
        return parameters

    def perform(self, ctx: Any) -> None:
        """Run the job until it is done or a signal ends it."""
        values = ctx.params
        job = job_of(self.job, values)
        job.check()
        if job.dry_run:
            lines, facts = stopping.run(job.plan())
            answer(lines, **facts)
            return
        for line in job.remarks():
            remark(line)
        job.prepare()
        for url, user, password, say_unread, *names_ in job.buckets():
            names = dict(zip(("collections", "scope"), names_, strict=True))
            check_answers(url, user, password, job.retry_seconds, say_unread=say_unread, **names)
        job.reach()
        run(job, values["shown"], values["metrics"], self.live)


def run(job: DeclaredJob[Any], form: ProgressFormat, metrics: str | None, live: Live | None) -> None:
    """Run a job and report its progress."""
    idle = IdleRun(job.line, job.LEVEL)
    is_live = live is not None and form is ProgressFormat.TEXT and out().is_terminal
    show = live() if live is not None and is_live else nullcontext(reporter(form, idle.line))
    with (
        stopping.heeding_signals(has_end=job.HAS_END or job.once) as stop,
        show as report_progress,
        metered(job.NAME, metrics, report_progress) as receivers,
    ):
        job.stop, job.progress, job.watch = stop, receivers["progress"], receivers.get("watch")
        job.run()
        idle.tell(form, unless=is_live or not job.once or stop())


def job_of(kind: type[DeclaredJob[Any]], values: dict[str, Any]) -> DeclaredJob[Any]:
    """Make a job of the options on the command line; the others have their declared defaults. Raises OptionError."""
    fields = {}
    for option in kind.options():
        if (value := values[option.field]) is not None and not (option.many and not value):
            fields[option.field] = value if option.read is None else option.read(value)
    return kind(**fields)


def add_job(app: typer.Typer, kind: type[DeclaredJob[Any]], part: str, live: Live | None = None) -> None:
    """Add the command of a job to the command line, in a part of its list."""

    def command() -> None:
        """Do nothing: `perform` runs the job."""

    attributes = {"job": kind, "live": staticmethod(live) if live else None}
    app.command(
        kind.NAME,
        cls=type(f"{kind.__name__}Command", (JobCommand,), attributes),
        help=paragraphs(kind.__doc__),
        epilog=examples(*kind.EXAMPLES),
        rich_help_panel=part,
    )(command)
