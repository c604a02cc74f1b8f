"""The page of jobs: for each a form, made of the options that it declares, which gives the command line to run it.

A job runs for weeks and belongs to a service manager, not to a page. So the page begins no job, and asks for no
password: the command does, or reads `--password-file`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from headwater.console.desk import Desk, desk_of, status_of
from headwater.errors import HeadwaterError, OptionError
from headwater.options import Option
from headwater.pipelines.jobs import JOBS, DeclaredJob

__all__ = ["command_of", "fields_of", "job", "jobs"]


class JobForm(NamedTuple):
    """A job as the page shows it: its command, its description, its options, and the texts in their fields."""

    name: str
    about: str
    options: Sequence[Option]
    given: Mapping[str, str]


def fields_of(kind: type[DeclaredJob[Any]]) -> list[Option]:
    """Return the options that a job's form has: those that the help shows, without passwords."""
    options = (option for option in kind.options() if not option.hidden and not option.secret)
    return [replace(option, about=option.about.replace("{done}", kind.DONE)) for option in options]


def command_of(kind: type[DeclaredJob[Any]], fields: Mapping[str, str]) -> str:
    """Return the command line that a form describes, for a shell; an empty field means the option's default.

    Raises:
        OptionError: an invalid value, or a required one is missing.
    """
    options = fields_of(kind)
    arguments = [word for option in options if option.positional for word in _words(option, fields)]
    flags = [word for option in options if not option.positional for word in _words(option, fields)]
    return shlex.join(["headwater", kind.NAME, *arguments, *flags])


def _words(option: Option, fields: Mapping[str, str]) -> list[str]:
    text = fields.get(option.field, "").strip()
    if option.kind is bool:
        return _switch(option, text)
    if not text:
        if option.is_required:
            raise option.refusal(text)
        return []
    if text == str(option.default):
        return []
    values = text.split() if option.many else [text]
    if option.many and option.read is not None:
        option.read(values)  # type: ignore[arg-type]  # as `job_of` calls it
    for value in values:
        if not option.many:
            option.parse(value)
        if value.startswith("-"):  # which a shell would hand on as an option of its own
            raise option.refusal(value)
    return values if option.positional else [word for value in values for word in (f"--{option.name}", value)]


def _switch(option: Option, text: str) -> list[str]:
    """Return the command line's words for a switch; none if the form has the default.

    A pair of switches, on and off, is a choice of two in the form; a single one is a box.
    """
    on, _, off = (option.flag or option.name).partition("/")
    is_on = text == (on if off else "yes") or (not text and bool(off) and option.default)
    return [] if is_on == option.default else [f"--{on}" if is_on else off]


async def jobs(request: Request) -> Response:
    """Show a form for each job."""
    return _page(request)


async def job(request: Request) -> Response:
    """Show the command line that a form describes, above all forms."""
    name, fields = request.path_params["name"], dict(request.query_params)
    try:
        if name not in JOBS:
            raise OptionError("job", name, f"one of {', '.join(JOBS)}")
        return _page(request, name, fields, command_of(JOBS[name], fields))
    except HeadwaterError as error:
        return _page(request, name, fields, problem=str(error), status=status_of(error))


def _page(
    request: Request,
    name: str = "",
    fields: Mapping[str, str] | None = None,
    command: str = "",
    *,
    problem: str = "",
    status: int = 200,
) -> Response:
    desk = desk_of(request)
    forms = [_form(desk, kind, fields or {} if name == kind.NAME else {}) for kind in JOBS.values()]
    context = {"title": "Jobs", "forms": forms, "name": name, "command": command, "problem": problem}
    return desk.render(request, "jobs.html", context, status)


def _form(desk: Desk, kind: type[DeclaredJob[Any]], fields: Mapping[str, str]) -> JobForm:
    text = " ".join((kind.__doc__ or "").partition("\n\n")[0].split())
    return JobForm(kind.NAME, text, fields_of(kind), {"source": desk.settings.target.url, **fields})
