"""`headwater serve`, from its arguments to its exit status.

The command-line library is not needed for plain options, and would cost a good part of a second; so what is heavy is
imported when it is its turn.
"""

from __future__ import annotations

import gc
import sys

__all__ = ["failed", "serve"]


def serve(arguments: list[str]) -> int:
    """Serve until a signal comes to stop; returns the exit status, 2 for a wrong option."""
    from headwater.errors import HeadwaterError  # noqa: PLC0415

    try:
        from headwater.node.config import config_from, parse_arguments  # noqa: PLC0415 - which reads the environment

        config = config_from(parse_arguments(arguments))
        gc.disable()  # what is loaded now stays; to look through all of it several times would be a tenth of the start
        from headwater.node import run  # noqa: PLC0415 - after the settings: a wrong one is told at once

        gc.enable()
        return run.serve(config)
    except (HeadwaterError, OSError) as error:
        return failed(error)


def failed(error: Exception) -> int:
    """Tell why nothing is served; returns the exit status, 2 for a wrong option."""
    from headwater.errors import OptionError  # noqa: PLC0415

    print(f"headwater: {error}", file=sys.stderr)
    return 2 if isinstance(error, OptionError) else 1
