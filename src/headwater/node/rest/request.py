"""An HTTP request as far as a node must understand one: request line, name and password, the length of a body.

A connection speaks HTTP when it begins with a method where a frame's magic byte would be: no magic is a letter. Source:
RFC 9112, 2 to 6.
"""

from __future__ import annotations

import base64
import re
from typing import NamedTuple
from urllib.parse import unquote

from headwater.errors import RemoteProtocolError

REQUEST_BYTES_MAX = 16 << 10
METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"PATCH ", b"OPTIONS ")
_METHOD_BYTES_MAX = max(map(len, METHODS))
_END = b"\r\n\r\n"
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_ONCE = frozenset({"content-length", "transfer-encoding", "host", "authorization"})


class HttpRequest(NamedTuple):
    """One request.

    `path` is unescaped, without its query and a slash at its end; `login` is (user, password) or None; `size`: bytes it
    took, `body` among them.
    """

    method: str
    path: str
    login: tuple[str, str] | None
    closes: bool
    size: int
    body: bytes = b""


def looks_like_http(data: memoryview) -> bool:
    """Whether these bytes begin with a method of HTTP."""
    return len(data) > 0 and 0x41 <= data[0] <= 0x5A and bytes(data[:_METHOD_BYTES_MAX]).startswith(METHODS)


def may_become_http(data: memoryview) -> bool:
    """Whether these bytes are the beginning of a method of HTTP, which more bytes could complete."""
    return any(method.startswith(bytes(data[:_METHOD_BYTES_MAX])) for method in METHODS)


def wanted(data: memoryview) -> int:
    """How many bytes must be there before it is looked at: any, a request is short enough to be read anew each time."""
    return 0


def read(data: memoryview) -> HttpRequest | None:
    """The request in front, or None while it is not whole.

    Raises:
        RemoteProtocolError: it is not HTTP/1, or larger than REQUEST_BYTES_MAX.
    """
    start = bytes(data[:REQUEST_BYTES_MAX])
    head, end, _ = start.partition(_END)
    if not end:
        if len(data) >= REQUEST_BYTES_MAX:
            raise RemoteProtocolError(f"an HTTP request of more than {REQUEST_BYTES_MAX} bytes")
        return None
    line, *lines = head.decode("latin-1").split("\r\n")
    method, target, version = _request_line(line)
    fields = _fields(lines)
    size = len(head) + len(_END) + _body_bytes(fields)
    if size > REQUEST_BYTES_MAX:
        raise RemoteProtocolError(f"an HTTP request of {size} bytes, {REQUEST_BYTES_MAX} are allowed")
    closes = version == "HTTP/1.0" or fields.get("connection", "").lower() == "close"
    path = unquote(target.partition("?")[0]).rstrip("/") or "/"
    if size > len(data):
        return None
    return HttpRequest(method, path, _login(fields), closes, size, start[len(head) + len(_END) : size])


def _request_line(line: str) -> tuple[str, str, str]:
    parts = line.split(" ")
    if len(parts) != 3 or _CONTROL.search(line) or parts[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise RemoteProtocolError(f"{line[:80]!r} is no request line of HTTP/1")
    return parts[0], parts[1], parts[2]


def _fields(lines: list[str]) -> dict[str, str]:
    """The fields by their names in small letters, as strictly as RFC 9112 (2.2, 5.1, 5.2, 6.3) has them.

    What two readers may take for different things is how a second request is hidden in the body of a first.
    """
    fields: dict[str, str] = {}
    for each in lines:
        name, colon, value = each.partition(":")
        if not colon or not _NAME.fullmatch(name) or _CONTROL.search(value):
            raise RemoteProtocolError(f"{each[:80]!r} is no header field of HTTP/1")
        name = name.lower()
        if name in fields and name in _ONCE:
            raise RemoteProtocolError(f"an HTTP request with two fields {name}")
        fields[name] = value.strip(" \t")
    return fields


def _body_bytes(fields: dict[str, str]) -> int:
    length = fields.get("content-length", "0")
    if "transfer-encoding" in fields or not (length.isascii() and length.isdecimal() and len(length) <= 9):
        raise RemoteProtocolError("an HTTP body whose length is not told")
    return int(length)


def _login(fields: dict[str, str]) -> tuple[str, str] | None:
    scheme, _, told = fields.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(told, validate=True).decode().partition(":")
    except ValueError:  # which binascii's and those of Unicode are: no base64, no ASCII, no UTF-8
        return None
    return (user, password) if colon else None
