"""Where a command gets a password from: a prompt, a file or standard input; never from its arguments.

Arguments of a process can be read by everybody on the machine, and stay in the history of the shell.
"""

import functools
import inspect
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer

from headwater.errors import OptionError

__all__ = ["OF_FILE", "came_from", "new_password", "password_of", "typed_password", "with_password_files"]

STANDARD_INPUT = "-"
PASSWORDS = {
    "password": "user",
    "target_password": "target_user",
    "cache_password": "cache_user",
    "opensearch_password": "opensearch_user",
}
"""Parameters of commands that are passwords, and those that are the names to them."""


def with_password_files(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command a --...-file for each --...password it has; who says who asks and no password is asked for it."""
    known = inspect.signature(command).parameters
    wanted = [name for name in PASSWORDS if name in known]
    if not wanted:
        return command

    @functools.wraps(command)
    def run(context: typer.Context, **given: Any) -> Any:
        for name in wanted:
            file = given.pop(f"{name}_file")
            if given[name] and came_from(context, name) < came_from(context, f"{name}_file"):
                file = None
            given[name] = password_of(file) if file is not None else _given_or_typed(given, name)
        return command(**given)

    kinds = {f"{name}_file": _file_option(name) for name in wanted}
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in kinds.items()
    ]
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    run.__annotations__ = {"context": typer.Context, **get_type_hints(command, include_extras=True), **kinds}
    signature = inspect.Signature([context, *known.values(), *added])
    run.__signature__ = signature  # type: ignore[attr-defined]  # typer reads a command's options from it
    return run


_ORDER: Final = ("COMMANDLINE", "ENVIRONMENT", "DEFAULT_MAP")
OF_FILE: Final = 2


def came_from(context: typer.Context, name: str) -> int:
    """The rank of the place where a value was found: command line, environment, file, default; 0 is the first."""
    source = context.get_parameter_source(name)
    return _ORDER.index(source.name) if source is not None and source.name in _ORDER else len(_ORDER)


def _file_option(name: str) -> Any:
    option = f"--{name.replace('_', '-')}-file"
    told = f"The same from the first line of a private file, {STANDARD_INPUT}: standard input."
    return Annotated[
        str | None, typer.Option(option, metavar="FILE", envvar=f"HEADWATER_{name.upper()}_FILE", help=told)
    ]


def _given_or_typed(given: dict[str, Any], name: str) -> Any:
    dashed = name.replace("_", "-")
    return given[name] or typed_password(given[PASSWORDS[name]], f"--{dashed}-file", f"HEADWATER_{name.upper()}")


def typed_password(user: str | None, option: str, variable: str) -> str | None:
    """Return what is typed as a user's password; None where nobody is named.

    Raises:
        OptionError: nobody sits there who could type it: the option and the variable that give it are named.
    """
    if user is None:
        return None
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        ways = f"{option} FILE ({STANDARD_INPUT}: standard input), or {variable} in the environment"
        raise OptionError("user", user, f"complete without a password, and no terminal is there to ask at: {ways}")
    typed: str = typer.prompt(f"Password of {user}", hide_input=True, err=True)
    return typed


def new_password(file: str | None, name: str) -> str:
    """Return a password for a user: from the file (`-` is standard input), or typed twice by whoever sits there.

    Raises:
        OptionError: the file can't be read, or others may read it.
    """
    if file is not None:
        return password_of(file)
    if sys.stdin.isatty():
        typed: str = typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)
        return typed
    return _first_line(sys.stdin.readline())


def password_of(file: str) -> str:
    """Return the first line of a file, `-` for standard input.

    Raises:
        OptionError: it can't be read, or others may read it.
    """
    if file == STANDARD_INPUT:
        return _first_line(sys.stdin.readline())
    path = Path(file)
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise OptionError("password-file", file, "private: others may read it; chmod 600 it")
        return _first_line(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise OptionError("password-file", file, f"a file that can be read ({reason})") from None


def _first_line(text: str) -> str:
    return text.partition("\n")[0].rstrip("\r")
