"""`python -m headwater` and the `headwater` command.

`serve` with plain options starts without the command-line library (headwater.node.main); everything else, and `serve
--help`, goes to headwater.cli.
"""

from __future__ import annotations

import io
import os
import signal
import sys


def main() -> int:
    """Run the command line; returns the exit status."""
    replace_closed()
    for number in (signal.SIGINT, signal.SIGTERM):  # until those who run have their own: imports take a while
        signal.signal(number, _stopped)
    arguments = sys.argv[1:]
    if arguments[:1] == ["serve"] and not {"--help", "-h"} & set(arguments):
        from headwater.node.main import serve  # noqa: PLC0415 - each way imports what it needs

        return serve(arguments[1:])
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="backslashreplace")  # a letter that it lacks is shown by its number
    from headwater.cli.arguments import hide_passwords  # noqa: PLC0415

    hide_passwords()  # before the imports, which take their time
    from headwater.cli.app import main as command_line  # noqa: PLC0415

    return command_line()


def _stopped(number: int, _frame: object) -> None:
    os.write(2, f"headwater: stopped by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)


def replace_closed() -> None:
    """Open the standard streams that the parent process had closed (`<&-`, a daemon). A use of stdin or stdout is an
    error of the system then, not an empty document or a lost result; stderr takes all and shows nothing."""
    for number, name, flags in ((0, "stdin", os.O_WRONLY), (1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)
            if descriptor != number:  # some file has taken its number
                os.dup2(descriptor, number, inheritable=True)
                os.close(descriptor)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115 - as Python's own


if __name__ == "__main__":
    sys.exit(main())
