"""The server process from which the mirror's workers are forked, started before there is a mirror.

It has no threads and no connections, but has imported the modules of tasks, which takes a second. The command starts it
first, so that it imports while the command looks up nodes and table. This module itself imports next to nothing.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext

PRELOADED = ("headwater.pipelines.preload",)


def context() -> ForkServerContext:
    """Return the context in which worker processes are started."""
    context_ = multiprocessing.get_context("forkserver")
    context_.set_forkserver_preload(list(PRELOADED))
    return context_


def begin() -> None:
    """Start the server without waiting for it, unless it is running. It ends with this process."""
    context()
    forkserver.ensure_running()
