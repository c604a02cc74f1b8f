"""The hot loops: kernels over raw addresses, compiled by numba, one small package.

builds.py decides how a kernel is built (machine code of the wheel, numba's, or plain Python with every access checked),
guard.py is that check, intrinsics.py the loads and stores everything is made of. scan.py accepts or refuses a received
buffer; columns.py turns frames into Arrow columns (decode.py, follow.py and tracker.py are its kernel); warming.py
builds everything at once. Importing this package alone imports nothing heavy.

Rules for a kernel: it checks a length before it touches memory, it reports (codes and offsets) and never raises, and
its caller can tell from the result how far it got.
"""

from __future__ import annotations

from collections.abc import Callable


def warm(report: Callable[[str], None] | None = None) -> None:
    """Compile the kernels, or load compiled ones; `report` is called with the time it took.

    Where the wheel brought machine code there is nothing to do.

    A module of kernels has a function `warm_up()` that calls each of them once with almost empty arguments, or names
    their types (`builds.prepare`).
    """
    from headwater.kernels import builds  # noqa: PLC0415 - importing this package alone must import nothing heavy

    if builds.compiling():
        builds.numbas("warming").warm(report)
