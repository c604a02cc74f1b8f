"""`python -m headwater` and the `headwater` command.

`serve` with plain options starts without the command-line library (headwater.node.main); everything else, and `serve
--help`, goes to headwater.cli.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; returns the exit status."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["serve"] and not {"--help", "-h"} & set(arguments):
        from headwater.node.main import serve  # noqa: PLC0415 - each way imports what it needs

        return serve(arguments[1:])
    from headwater.cli.arguments import hide_passwords  # noqa: PLC0415

    hide_passwords()  # before the imports, which take their time
    from headwater.cli.app import main as command_line  # noqa: PLC0415

    return command_line()


if __name__ == "__main__":
    sys.exit(main())
