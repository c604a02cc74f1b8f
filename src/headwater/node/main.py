"""`headwater serve`, from its arguments to its exit status.

Plain options need no command-line library, whose import takes a large part of a second; heavy modules are imported only
when they are needed.
"""

from __future__ import annotations

import gc
import logging
import sys

__all__ = ["failed", "serve"]


def serve(arguments: list[str]) -> int:
    """Run a node with these arguments until a signal to stop it; return the exit status: 0, 2 for a wrong option, 1 for
    any other error.
    """
    from headwater.errors import HeadwaterError  # noqa: PLC0415

    as_json = False
    try:
        from headwater.node.config import config_from, one_thread_for, parse_arguments  # noqa: PLC0415 - reads the environment

        config = config_from(parse_arguments(arguments))
        as_json = config.log_format == "json"
        one_thread_for(config)
        gc.disable()  # the loaded objects stay; scanning them several times would take a tenth of the start
        from headwater.node import run  # noqa: PLC0415 - after the settings, so that a wrong one is reported at once

        gc.enable()
        return run.serve(config)
    except (HeadwaterError, OSError) as error:
        return failed(error, as_json=as_json)


def failed(error: Exception, *, as_json: bool = False) -> int:
    """Report the error that prevents the node from serving; return the exit status, 2 for a wrong option."""
    from headwater.errors import OptionError  # noqa: PLC0415

    if as_json:
        from headwater.node.reporting.log_lines import begin, event  # noqa: PLC0415

        begin("error", "json")
        logging.getLogger(__name__).error("%s", error, extra=event("node.refused"))
    else:
        print(f"headwater: {error}", file=sys.stderr)
    return 2 if isinstance(error, OptionError) else 1
