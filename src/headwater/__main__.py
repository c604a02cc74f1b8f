"""`python -m headwater` and the `headwater` command.

`serve` with plain options starts without the command-line library, which would cost a good part of a second;
everything else, and `serve --help`, goes to headwater.cli.
"""

from __future__ import annotations

import gc
import sys


def main() -> int:
    """Run the command line; returns the exit status."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["serve"] and not {"--help", "-h"} & set(arguments):
        return _serve(arguments[1:])
    from headwater.cli.app import main as command_line  # noqa: PLC0415 - see above

    return command_line()


def _serve(arguments: list[str]) -> int:
    from headwater.errors import HeadwaterError  # noqa: PLC0415
    from headwater.node.config import config_from, parse_arguments  # noqa: PLC0415

    try:
        config = config_from(parse_arguments(arguments))
        gc.disable()  # what is loaded now stays; to look through all of it several times would be a tenth of the start
        from headwater.node.run import serve  # noqa: PLC0415 - after the settings: a wrong one is told at once

        gc.enable()
        return serve(config)
    except (HeadwaterError, OSError) as error:
        return failed(error)


def failed(error: Exception) -> int:
    """Tell why nothing is served; returns the exit status, 2 for a wrong option."""
    from headwater.errors import OptionError  # noqa: PLC0415

    print(f"headwater: {error}", file=sys.stderr)
    return 2 if isinstance(error, OptionError) else 1


if __name__ == "__main__":
    sys.exit(main())
