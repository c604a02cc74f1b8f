"""The hot loops: kernels over raw addresses, compiled by numba.

builds.py decides how a kernel is built (machine code of the wheel, machine code by numba, or plain Python with every
access checked), guard.py checks these accesses, intrinsics.py has the loads and stores of all kernels. scan.py accepts
or refuses a received buffer; columns.py turns frames into Arrow columns (decode.py, follow.py and tracker.py are its
kernel); warming.py builds everything at once. Importing this package alone imports nothing heavy.

Rules for a kernel: it checks a length before it touches memory; it returns codes and offsets, and never raises; the
result tells its caller which input was processed.
"""

from __future__ import annotations

from collections.abc import Callable


def warm(report: Callable[[str], None] | None = None) -> None:
    """Compile the kernels, or load compiled ones; `report` gets a line for each module and one for all.

    With machine code from the wheel there is nothing to compile.

    Every module of kernels has a function `warm_up()` that calls each kernel once with almost empty arguments, or gives
    their types to `builds.prepare`.
    """
    from headwater.kernels import builds  # noqa: PLC0415 - importing this package alone must import nothing heavy

    if builds.compiling():
        builds.numbas("warming").warm(report)
