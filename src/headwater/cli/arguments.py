"""Passwords among the arguments of a process: overwritten at once, since everybody on the machine can read
arguments.

Linux shows the arguments from the process's own memory, so a change there shows in `ps`, too. Until then the password
is visible for about a tenth of a second from the start of the process; one from a file, the environment or a prompt is
never visible.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["hide_passwords", "masked"]

_OPTION = re.compile(rb"--(?:[a-z]+-)?password")
_PROPERTY = re.compile(rb"(?:--kafka=)?[a-z.]+\.(?:password|secret|pem)=")
_LOGIN = re.compile(rb"(?P<before>^(?:[a-z]+://)?[^/:@]*:)(?P<password>.+)(?P<after>@)", re.DOTALL)
_ARGUMENTS_BEGIN = 47  # fields 48 and 49 of /proc/PID/stat (proc(5)), the first of them being 0 here
_SELF = Path("/proc/self")


def hide_passwords() -> None:
    """Overwrite the passwords among this process's arguments; do nothing if the system does not allow it."""
    try:
        # The program's name stands in brackets before the numbers, and may have blanks and brackets of its own.
        fields = (_SELF / "stat").read_bytes().rpartition(b")")[2].split()
        begin, end = (int(fields[_ARGUMENTS_BEGIN - 2 + place]) for place in (0, 1))
        with (_SELF / "mem").open("r+b", buffering=0) as memory:
            memory.seek(begin)
            arguments = memory.read(end - begin)
            hidden = b"\0".join(masked(arguments.split(b"\0")))
            # Another length would move the arguments behind, and overwrite the environment that follows them.
            if hidden != arguments and len(hidden) == len(arguments):
                memory.seek(begin)
                memory.write(hidden)
    except (OSError, ValueError, IndexError):
        return


def masked(arguments: list[bytes]) -> Iterator[bytes]:
    """Yield arguments with stars in place of passwords, each as long as before."""
    follows = False
    for argument in arguments:
        name, equals, value = argument.partition(b"=")
        is_option = _OPTION.fullmatch(name) is not None
        property_ = _PROPERTY.match(argument)
        if follows:
            yield b"*" * len(argument)
        elif property_ is not None:
            yield property_[0] + b"*" * (len(argument) - property_.end())
        elif is_option and equals:
            yield name + equals + b"*" * len(value)
        else:
            yield _LOGIN.sub(lambda match: match["before"] + b"*" * len(match["password"]) + match["after"], argument)
        follows = is_option and not equals and not follows
