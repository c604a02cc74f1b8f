"""End a failed command with one line on stderr and an exit status, never with a traceback for a user's mistake.

The plan: the group of all commands runs typer without its own ending ("standalone mode") and ends itself:

| what happened                                      | exit | stderr                          |
|----------------------------------------------------|------|---------------------------------|
| all went well                                      | 0    |                                 |
| a HeadwaterError, or the system refused (OSError)  | 1    | `headwater: ` and its message   |
| a library is missing that an extra brings          | 1    | `headwater: ` and what to install |
| a wrong option or argument (OptionError too)       | 2    | `headwater: ` and what to do    |
| Ctrl-C or SIGTERM before the work was done         | 130, 143 | `headwater: stopped ...`    |
| the terminal was closed (SIGHUP) before that       | 129  | `headwater: stopped ...`        |

Anything else is a bug of ours and keeps its traceback.
"""

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperGroup

from headwater.cli.plain_help import plain, plain_command
from headwater.cli.stopping import Stopped, raised
from headwater.cli.values import take_as_it_is
from headwater.errors import HeadwaterError, OptionError, hide_logins
from headwater.first_line import next_step

# typer brings its own copy of click since 0.26; the class above its usage errors is the same thing in both.
_UsageError: type[Any] = typer.BadParameter.__mro__[1]


_ARGUMENT = re.compile(r"[^\s\"'(]+:[^\s\"')]*@")


class InputError(HeadwaterError):
    """A file given to a command has content that the command can't take."""

    def __init__(self, path: Path, place: str, reason: str) -> None:
        self.path: Path = path
        self.place: str = place
        self.why: Final = reason
        super().__init__(f"{path}, {place}: {reason}")


class CommandError(HeadwaterError):
    """The command did its work and the result is a failure; the message has the expectation and the finding."""


class Commands(TyperGroup):
    """All commands; ends the process as the table above says."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        plain_command(self)

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters of the group; those of the shell's completion are made after it."""
        return [take_as_it_is(plain(param)) for param in super().get_params(ctx)]

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run one command line and exit; always raises SystemExit, as the function that it replaces."""
        kwargs["standalone_mode"] = False
        sys.exit(_ending(_stoppable, super().main, *args, **kwargs))


def _stoppable(run: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the command; a failure after a signal was caused by it, whatever it looks like."""
    try:
        return run(*args, **kwargs)
    except Exception as error:
        if (stop := raised()) is None:
            raise
        raise stop from error


def _ending(run: Any, *args: Any, **kwargs: Any) -> int:
    """Run the command and turn its outcome into an exit status."""
    try:
        result = run(*args, **kwargs)
    except Stopped as stop:
        return _say(str(stop), 128 + stop.signal)
    except typer.Abort:
        return _say("stopped", 130)
    except _UsageError as error:
        return _say(message, 2) if (message := _usage(error)) else 2
    except HeadwaterError as error:
        return _say(f"{error}{next_step(type(error).__name__, str(error))}", 2 if isinstance(error, OptionError) else 1)
    except (OSError, ModuleNotFoundError, UnicodeEncodeError) as error:
        if (line := _message_of(error)) is None:
            raise
        return _say(line, 2 if isinstance(error, UnicodeEncodeError) else 1)
    return result if isinstance(result, int) else 0


def _message_of(error: OSError | ModuleNotFoundError | UnicodeEncodeError) -> str | None:
    """Return the message for a failure outside of headwater, or None if that explains nothing. Python hands us
    arguments that are no UTF-8 with surrogates in them, which no message to a node can have.
    """
    if isinstance(error, OSError):
        return system(error)
    if isinstance(error, ModuleNotFoundError):
        from headwater.cli import extras

        return extras.advice(error)
    return f"{ascii(error.object)[:80]} is no text in UTF-8" if error.reason == "surrogates not allowed" else None


def _say(message: str, status: int) -> int:
    """Print the one line, and return the status; a message of several lines is folded into one."""
    _give_up_output()
    with suppress(OSError):  # a terminal that is closed takes no line, and the status says it all the same
        print("headwater:", hide_logins(" ".join(message.split())), file=sys.stderr)
    return status


def _give_up_output() -> None:
    """Drop the output that stdout would not take: Python would try again when it ends, and fail with a status of its
    own.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end


_WANTED = {
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
    "greater_than_equal": "{ge} or more",
    "less_than_equal": "{le} or less",
}
"""The right form of a value, by pydantic's name for the mistake: typer's types are pydantic's."""


def plain_words(error: Any) -> str:
    """Return the reason why a value of an option or an argument (a typer.BadParameter) is invalid."""
    details = error.__cause__.errors()[0] if hasattr(error.__cause__, "errors") else {}
    if (kind := _WANTED.get(details.get("type", ""))) is not None:
        return f"{str(details['input'])!r} is not {kind.format(**details.get('ctx', {}))}"
    message, is_one_of, choices = str(error.message).removeprefix("Value error, ").partition(" is not one of ")
    return message + is_one_of + choices.replace("'", "")


def _usage(error: Any) -> str:
    """Return the error, and where to find the right form; nothing if the help itself was shown."""
    if isinstance(error, typer.BadParameter):
        error.message = plain_words(error)
    command = error.ctx.command_path if error.ctx is not None else "headwater"
    message = _ARGUMENT.sub("...@", error.format_message()) + _dash_advice(
        error
    )  # what was typed may be an address with a password
    if not message:
        return ""
    return f"{message}{'' if message.endswith(('.', '?', '!')) else '.'} See: {command} --help"


def _dash_advice(error: Any) -> str:
    """Return the way to pass arguments that begin with a dash, if a command takes arguments: `-40`, `-wine`."""
    typed, parameters = getattr(error, "option_name", ""), error.ctx.command.params if error.ctx is not None else ()
    arguments = [parameter for parameter in parameters if parameter.param_type_name == "argument"]
    if type(error).__name__ != "NoSuchOption" or not arguments or typed.startswith("--"):
        return ""
    return f"; what begins with a dash and is no option goes behind --: {error.ctx.command_path} ... -- -..."


def system(error: OSError) -> str:
    """Return `path: No such file or directory`, without the number in brackets."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason
