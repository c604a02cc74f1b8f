"""The sources of a command's password: a prompt, a file or standard input; never from its arguments.

Everybody on the machine can read a process's arguments, and the shell keeps them in its history.
"""

import stat
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headwater.errors import OptionError

__all__ = [
    "OF_FILE",
    "file_option",
    "new_password",
    "origin_rank",
    "password_given",
    "password_of",
    "passwords_in",
    "typed_password",
    "user_of",
]

STANDARD_INPUT = "-"
_ORDER: Final = ("COMMANDLINE", "ENVIRONMENT", "DEFAULT_MAP")
OF_FILE: Final = 2


def user_of(password: str) -> str:
    """Return the parameter that names the user of a password: target_user of target_password."""
    return f"{password.removesuffix('password')}user"


def passwords_in(names: Collection[str]) -> list[str]:
    """Return the parameters of a command that are passwords of users, `password` first."""
    passwords = [name for name in names if name.endswith("password") and user_of(name) in names]
    return sorted(passwords, key=lambda each: (len(each), each))


def origin_rank(context: typer.Context, name: str) -> int:
    """Return the rank of a value's origin: command line, environment, file, default; 0 is the first."""
    source = context.get_parameter_source(name)
    return _ORDER.index(source.name) if source is not None and source.name in _ORDER else len(_ORDER)


def file_option(name: str) -> Any:
    """Return the declaration of the option that names the file of a password."""
    option = f"--{name.replace('_', '-')}-file"
    text = f"The same from the first line of a private file, {STANDARD_INPUT}: standard input."
    return Annotated[
        str | None, typer.Option(option, metavar="FILE", envvar=f"HEADWATER_{name.upper()}_FILE", help=text)
    ]


def password_given(context: typer.Context, name: str, file: str | None) -> str | None:
    """Return the password of a parameter: its own value or that of its file, whichever comes from a place nearer to the
    command line, or the one typed at the terminal; None without a user.

    Raises:
        OptionError: as `password_of` and `typed_password`.
    """
    value = context.params[name]
    if file is not None and not (value and origin_rank(context, name) < origin_rank(context, f"{name}_file")):
        return password_of(file)
    user, option = context.params[user_of(name)], f"--{name.replace('_', '-')}-file"
    return value or typed_password(user, option, f"HEADWATER_{name.upper()}")


def typed_password(user: str | None, option: str, variable: str) -> str | None:
    """Return the password that is typed for a user; None without a user.

    Raises:
        OptionError: there is no terminal; the message names the option and the variable for the password.
    """
    if user is None:
        return None
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        ways = f"{option} FILE ({STANDARD_INPUT}: standard input), or {variable} in the environment"
        raise OptionError("user", user, f"complete without a password, and no terminal is there to ask at: {ways}")
    typed: str = typer.prompt(f"Password of {user}", hide_input=True, err=True)
    return typed


def new_password(file: str | None, name: str) -> str:
    """Return a new password for a user: from the file (`-` is standard input), or typed twice.

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
        OptionError: the file can't be read, or others may read it.
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
