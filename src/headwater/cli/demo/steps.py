"""A demo's steps on the screen."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headwater.cli.screen import out


@contextmanager
def step(name: str) -> Iterator[Callable[[str], None]]:
    """Show one line: the step's name while it lasts (on a terminal), its result and its time after."""
    console = out()
    began = time.monotonic()
    results: list[str] = []
    with console.status(f"{name} ..."):
        yield results.append
    console.print(f"{name:<36} {' '.join(results)}  [dim]{time.monotonic() - began:.1f} s")
