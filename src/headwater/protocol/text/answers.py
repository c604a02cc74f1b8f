"""Answers of the text protocol as lines: success in each command's own words, errors as CLIENT_ERROR or SERVER_ERROR.

CLIENT_ERROR reports the client's own mistake; SERVER_ERROR reports a failure, after which a retry may succeed. Source:
kv.md 7.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwater.protocol.text.words import ERROR
from headwater.wire.bootstrap import StatResponse
from headwater.wire.layout import Answer
from headwater.wire.status import Status, name_of

__all__ = ["NON_NUMERIC", "UNAUTHENTICATED", "failed", "said", "stat_line", "with_value"]

NON_NUMERIC = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"
UNAUTHENTICATED = b"CLIENT_ERROR unauthenticated\r\n"
_WORDS_BYTES_MAX = 500
LARGE_BYTES = 64 << 10

_LINES = {
    Status.E2BIG: b"SERVER_ERROR object too large for cache\r\n",
    Status.DELTA_BADVAL: NON_NUMERIC,
    Status.AUTH_ERROR: b"CLIENT_ERROR authentication failure\r\n",
    Status.UNKNOWN_COMMAND: ERROR,
    Status.NOT_SUPPORTED: ERROR,
}
_BEGINNINGS = {
    Status.EINVAL: b"CLIENT_ERROR invalid arguments",
    Status.EACCESS: b"CLIENT_ERROR access denied",
    Status.NOT_MY_VBUCKET: b"SERVER_ERROR not my vbucket",
    Status.LOCKED: b"SERVER_ERROR temporary failure",
    Status.ETMPFAIL: b"SERVER_ERROR temporary failure",
    Status.EBUSY: b"SERVER_ERROR temporary failure",
    Status.ENOMEM: b"SERVER_ERROR out of memory",
    Status.NO_BUCKET: b"SERVER_ERROR no bucket",
    Status.EINTERNAL: b"SERVER_ERROR internal error",
}


def said(answer: Answer | None, lines: Mapping[int, bytes]) -> bytes:
    """Return the line for an answer's status from `lines`; for any other status, the error line of `failed`."""
    line = lines.get(answer.status) if answer is not None else None
    return failed(answer) if line is None else line


def failed(answer: Answer | None) -> bytes:
    """Return the error line of a failure, with the handler's explanation."""
    status = Status.EINTERNAL if answer is None else answer.status
    line = _LINES.get(Status(status)) if status in _KNOWN else None
    if line is not None:
        return line
    begins = _BEGINNINGS.get(Status(status)) if status in _KNOWN else None
    begins = begins or b"SERVER_ERROR " + name_of(status).lower().encode()
    words = b" ".join(answer.value[:_WORDS_BYTES_MAX].split()) if answer is not None else b""
    return begins + (b": " + words if words else b"") + b"\r\n"


_KNOWN = frozenset(_LINES) | frozenset(_BEGINNINGS)


def with_value(line: bytes, value: bytes) -> bytes | tuple[bytes, ...]:
    """Return a line and the value after it; a large value is not copied."""
    return (line, value, b"\r\n") if len(value) >= LARGE_BYTES else line + value + b"\r\n"


def stat_line(group: bytes, answer: StatResponse) -> bytes:
    """Return one statistic of a group as a line; for the empty answer, which ends the group, the end line."""
    if answer.key:
        return b"STAT %b %b\r\n" % (answer.key, answer.value)
    return b"RESET\r\n" if group == b"reset" else b"END\r\n"
