"""Makes a command of a function, of the class of a job or of work, or of a typer.Typer with several commands."""

from typing import Any

import typer
from typer.core import TyperCommand

from headwater.cli.commands import CommandWithForms
from headwater.cli.options import paragraphs
from headwater.cli.plain_help import plain_group
from headwater.cli.renamed import accept_old_names

__all__ = ["CommandWithForms", "command_of"]


def command_of(
    name: str,
    brought: Any,
    part: str,
    *,
    is_job: bool = False,
    text: str | None = None,
    examples: str | None = None,
    kind: type[CommandWithForms] = CommandWithForms,
    live: Any = None,
) -> Any:
    """Return a command for the command line.

    Args:
        name: the name on the command line.
        brought: the function, the group, or the class of a job or of work, which has its own help and examples.
        part: its part of the list of commands.
        is_job: True for the class of a job, or of operators' work.
        text: the help of a group; None for the group's own.
        examples: the examples at the end of its help.
        kind: the class of a function's command.
        live: shows a job's progress (jobs.py).
    """
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.callback()(lambda: None)  # or typer would make one command of a program with one
    if is_job:
        _add(app, brought, part, live)
    elif isinstance(brought, typer.Typer):
        texts: dict[str, Any] = {} if text is None else {"help": paragraphs(text), "epilog": examples}
        app.add_typer(brought, name=name, rich_help_panel=part, **texts)
        for each in brought.registered_commands:
            each.cls = each.cls if issubclass(each.cls or TyperCommand, CommandWithForms) else CommandWithForms
    else:
        app.command(name, cls=kind, help=paragraphs(brought.__doc__), epilog=examples, rich_help_panel=part)(brought)
    group: Any = typer.main.get_command(app)
    command = group.commands[name]
    plain_group(command)
    accept_old_names(command, name)
    return command


def _add(app: typer.Typer, brought: Any, part: str, live: Any) -> None:
    """Add the command of a job, or of operators' work, to a program."""
    from headwater.cluster.work import DeclaredWork

    if issubclass(brought, DeclaredWork):
        from headwater.cli.cluster.work import add_work

        add_work(app, brought, None, part)
    else:
        from headwater.cli.jobs import add_job

        add_job(app, brought, part, live)
