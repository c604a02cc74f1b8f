"""The forms of a command's output, the same for all: for people, as JSON, quiet, verbose.

    --json         the result as one JSON object on stdout, or one a line where there are many; no questions
    --quiet, -q    no progress, no remarks, no report of what was done: only what was asked for, and errors
    --verbose, -v  on stderr, what it talks to and how long it took; twice: with the traceback of an error

`commands.py` gives a command those of them that it does not declare itself. Commands print by `report` (what was done),
`answer` (the result that was asked for), `remark` and `detail`.
"""

import json
import logging
import platform
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer

import headwater
from headwater.errors import HeadwaterError, OptionError

__all__ = ["FORMS", "Forms", "answer", "ask", "detail", "forms", "remark", "remark_later", "report", "speaking"]


@dataclass(frozen=True, slots=True)
class Forms:
    """The forms chosen on the command line."""

    json: bool = False
    quiet: bool = False
    verbose: int = 0


_forms = Forms()


def forms() -> Forms:
    """Return the forms of the running command."""
    return _forms


def report(line: str, **facts: Any) -> None:
    """Report the work: a line for people, with --json the facts, with --quiet nothing."""
    if _forms.json:
        typer.echo(json.dumps(facts))
    elif not _forms.quiet:
        typer.echo(line)


def answer(line: str, **facts: Any) -> None:
    """Print the result: as `report`, but also with --quiet."""
    typer.echo(json.dumps(facts) if _forms.json else line)


def remark(line: str) -> None:
    """Print a remark on stderr that is no reason to fail."""
    if not _forms.quiet:
        typer.echo(f"headwater: {line}", err=True)


_later: list[str] = []


def remark_later(line: str) -> None:
    """Keep a remark until the forms are known."""
    _later.append(line)


def detail(line: str) -> None:
    """Print on stderr, with --verbose, a step of the command."""
    if _forms.verbose:
        typer.echo(f"headwater: {line}", err=True)


def ask(question: str, yes: bool) -> None:
    """Ask before work begins; end the command if the answer is no.

    Raises:
        OptionError: nobody can be asked, since a program reads the output.
    """
    if yes:
        return
    if _forms.json or _forms.quiet:
        raise OptionError("json" if _forms.json else "quiet", True, "able to ask: give --yes as well")
    typer.confirm(question, abort=True)


FORMS: Mapping[str, tuple[str, Any, Any]] = {
    "as_json": (
        "--json",
        Annotated[
            bool, typer.Option("--json", help="Print the result as JSON: an object, or one a line; ask nothing.")
        ],
        False,
    ),
    "quiet": (
        "--quiet",
        Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but what was asked for, and errors.")],
        False,
    ),
    "verbose": (
        "--verbose",
        Annotated[
            int,
            typer.Option(
                "--verbose",
                "-v",
                count=True,
                show_default=False,
                help="Tell on stderr what it does; -vv: errors with traceback.",
            ),
        ],
        0,
    ),
}
"""By the name of their parameter: the option, its declaration, its default."""


@contextmanager
def speaking(forms: Forms) -> Iterator[None]:
    """Use these forms while a command runs, and report its total with --verbose."""
    global _forms  # noqa: PLW0603 - one command runs at a time, and its callbacks run in other threads
    before, _forms, began = _forms, forms, time.monotonic()
    try:
        with _logged(forms.verbose), _waits_told(forms.verbose):
            detail(f"headwater {headwater.__version__}, Python {platform.python_version()}")
            while _later:
                remark(_later.pop())
            yield
    except HeadwaterError:
        if forms.verbose > 1:
            traceback.print_exc()
        raise
    finally:
        detail(f"took {time.monotonic() - began:.2f} s")
        _forms = before


class _Remarks(logging.Handler):
    """Prints log lines as remarks."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one log line."""
        remark(record.getMessage())


@contextmanager
def _waits_told(verbose: int) -> Iterator[None]:
    """Print the client's waits; with --verbose its log has them already."""
    log, handler = logging.getLogger("headwater.client.waiting"), _Remarks()
    level = log.level
    if not verbose:
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


@contextmanager
def _logged(verbose: int) -> Iterator[None]:
    """Send the package's log lines to stderr, those for debugging with two -v."""
    if not verbose:
        yield
        return
    log, handler = logging.getLogger("headwater"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("headwater: %(name)s: %(message)s"))
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG if verbose > 1 else logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
