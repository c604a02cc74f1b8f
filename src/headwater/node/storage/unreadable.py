"""The end of a node whose mapped log can't be read: one line that names the file and the byte, and status 1.

If a file of the log is cut while the node runs, or the disk fails a read, access to mapped memory raises no error but a
signal (SIGBUS), which by default ends the process without a message. The node can't continue without these bytes. The
next start verifies every file, and names the damage.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Final

_ADDRESS_AT: Final = 16
"""The offset of the address in the system's description of a signal (siginfo_t of 64-bit Linux)."""
_SIGINFO: Final = 4
_MASK_BYTES: Final = 128

_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _Action(ctypes.Structure):
    """The structure sigaction of 64-bit Linux, glibc and musl."""

    _fields_ = (
        ("handler", _Handler),
        ("mask", ctypes.c_char * _MASK_BYTES),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def end_with_a_line() -> None:
    """Install a handler that ends the process with one line on stderr when mapped memory can't be read. Does nothing on
    systems other than 64-bit Linux.
    """
    if sys.platform == "linux" and ctypes.sizeof(ctypes.c_void_p) == 8:
        action = _Action(_handler, bytes(_MASK_BYTES), _SIGINFO, None)
        ctypes.CDLL(None).sigaction(int(signal.SIGBUS), ctypes.byref(action), None)


def line_of(address: int, maps: str) -> str:
    """Return the message for an address that can't be read; `maps` is the text of /proc/self/maps."""
    where = "a mapped file"
    for line in maps.splitlines():
        span, _, offset, _, _, *path = line.split(maxsplit=5)
        first, end = (int(bound, 16) for bound in span.split("-"))
        if path and first <= address < end:
            where = f"{path[0]}: byte {int(offset, 16) + address - first}"
    return (
        f"error: {where} can't be read, the file was cut or its disk fails; the node stops, a start tells what is lost"
    )


def _end(_: int, size: int, __: int) -> None:
    """Write the line and end the process. The system calls this in the thread whose read has failed; it must not
    return.
    """
    try:
        address = ctypes.c_uint64.from_address(size + _ADDRESS_AT).value
        line = line_of(address, Path("/proc/self/maps").read_text("utf-8", "replace"))
        # No logging here: the thread that was interrupted may hold its lock.
        os.write(2, line.encode("utf-8", "replace") + b"\n")
    finally:
        os._exit(1)


_handler = _Handler(_end)  # as long as the process lives
