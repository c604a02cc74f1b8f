"""Parses the parts of an HTTP request that a node needs: request line, name and password, body.

A connection uses HTTP if its first bytes are an HTTP method: the first byte of a frame, its magic, is never a letter.

Source: RFC 9112, 2 to 6.
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
_CHUNKS_MAX = 64  # few, because an incomplete body is parsed again, from its start, after each receive
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_ONCE = frozenset({"content-length", "transfer-encoding", "host", "authorization", "origin", "sec-fetch-site"})


class HttpRequest(NamedTuple):
    """One request.

    Attributes:
        method: the method, as in "GET".
        path: the unescaped path, without its query, and without a slash at its end.
        login: the user and the password; None if the request has none.
        closes: True if the client wants the connection closed after the answer.
        size: the size of the whole request in bytes.
        body: the decoded body.
        host: the field Host; None if it is absent.
        origin: the field Origin; None if it is absent.
        site: the field Sec-Fetch-Site; None if it is absent.
    """

    method: str
    path: str
    login: tuple[str, str] | None
    closes: bool
    size: int
    body: bytes = b""
    host: str | None = None
    origin: str | None = None
    site: str | None = None


def looks_like_http(data: memoryview) -> bool:
    """Return True if these bytes begin with an HTTP method."""
    return len(data) > 0 and 0x41 <= data[0] <= 0x5A and bytes(data[:_METHOD_BYTES_MAX]).startswith(METHODS)


def may_become_http(data: memoryview) -> bool:
    """Return True if these bytes are the beginning of an HTTP method."""
    return any(method.startswith(bytes(data[:_METHOD_BYTES_MAX])) for method in METHODS)


def wanted(data: memoryview) -> int:
    """Return the number of bytes to wait for before `data` is parsed: always 0.

    A request is short enough to be parsed again after each receive.
    """
    return 0


def read(data: memoryview) -> HttpRequest | None:
    """Return the first request in `data`; None while it is incomplete.

    Raises:
        RemoteProtocolError: the request is not HTTP/1, or larger than REQUEST_BYTES_MAX.
    """
    # However much has arrived, only the bytes that a request may have are parsed.
    start = bytes(data[:REQUEST_BYTES_MAX])
    head, end, _ = start.partition(_END)
    if not end:
        if len(data) >= REQUEST_BYTES_MAX:
            raise RemoteProtocolError(f"an HTTP request of more than {REQUEST_BYTES_MAX} bytes")
        return None
    line, *lines = head.decode("latin-1").split("\r\n")
    method, target, version = _request_line(line)
    fields = _fields(lines)
    at = len(head) + len(_END)
    body = (
        _chunked_body(start, at, fields, version) if "transfer-encoding" in fields else _plain_body(start, at, fields)
    )
    closes = version == "HTTP/1.0" or fields.get("connection", "").lower() == "close"
    path = unquote(target.partition("?")[0]).rstrip("/") or "/"
    if body is None:
        return None
    sender = (fields.get(name) for name in ("host", "origin", "sec-fetch-site"))
    return HttpRequest(method, path, _login(fields), closes, body.end, body.content, *sender)


def _request_line(line: str) -> tuple[str, str, str]:
    parts = line.split(" ")
    if len(parts) != 3 or _CONTROL.search(line) or parts[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise RemoteProtocolError(f"{line[:80]!r} is no request line of HTTP/1")
    return parts[0], parts[1], parts[2]


def _fields(lines: list[str]) -> dict[str, str]:
    """Return the header fields by their names in lower case.

    The strict rules of RFC 9112 apply (2.2, 5.1, 5.2, 6.3): a field that two parsers read differently could hide a
    second request in the body of the first.
    """
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name) or _CONTROL.search(value):
            raise RemoteProtocolError(f"{line[:80]!r} is no header field of HTTP/1")
        name = name.lower()
        if name in fields and name in _ONCE:
            raise RemoteProtocolError(f"an HTTP request with two fields {name}")
        fields[name] = value.strip(" \t")
    return fields


class _Body(NamedTuple):
    """A decoded body (`content`), and the offset at which its request ends (`end`)."""

    content: bytes
    end: int


def _plain_body(start: bytes, at: int, fields: dict[str, str]) -> _Body | None:
    """Return a body whose length is in Content-Length, 0 without that field; None while the body is incomplete."""
    length = fields.get("content-length", "0")
    if not (length.isascii() and length.isdecimal() and len(length) <= 9):
        raise RemoteProtocolError("an HTTP body whose length is not told")
    end = _checked_end(at + int(length))
    return _Body(start[at:end], end) if end <= len(start) else None


def _chunked_body(start: bytes, at: int, fields: dict[str, str], version: str) -> _Body | None:
    """Return a body in chunks, as Go's clients send it (RFC 9112, 7.1); None while it is incomplete.

    Extensions and trailers, which these clients do not send, are refused. So is a request that has both chunks and a
    Content-Length.
    """
    if fields["transfer-encoding"].lower() != "chunked" or "content-length" in fields or version == "HTTP/1.0":
        raise RemoteProtocolError("an HTTP body whose length is not told")
    content = b""
    for _ in range(_CHUNKS_MAX):
        line = start.find(b"\r\n", at, at + 10)
        size_text = start[at : at + 10 if line < 0 else line]
        if line < 0 and (
            not size_text or (len(size_text) < 10 and _CHUNK_SIZE.fullmatch(size_text.removesuffix(b"\r")))
        ):
            return None
        if line < 0 or not _CHUNK_SIZE.fullmatch(size_text):
            raise RemoteProtocolError(f"{size_text!r} is no size of a chunk of HTTP/1.1")
        at, end = line + 2, _checked_end(line + 2 + int(size_text, 16) + 2)
        # A chunk ends with these two bytes; perhaps only a part of them has arrived yet.
        if not b"\r\n".startswith(start[end - 2 : end]):
            raise RemoteProtocolError("a chunk of HTTP/1.1 that is longer than it says, or a trailer")
        if end > len(start):
            return None
        # The chunk of size 0 ends the body.
        if end == at + 2:
            return _Body(content, end)
        content += start[at : end - 2]
        at = end
    raise RemoteProtocolError(f"an HTTP body of more than {_CHUNKS_MAX} chunks")


def _checked_end(end: int) -> int:
    if end > REQUEST_BYTES_MAX:
        raise RemoteProtocolError(f"an HTTP request of {end} bytes, {REQUEST_BYTES_MAX} are allowed")
    return end


def _login(fields: dict[str, str]) -> tuple[str, str] | None:
    scheme, _, credentials = fields.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(credentials, validate=True).decode().partition(":")
    except ValueError:  # also the base class of binascii's and Unicode's errors: not base64, ASCII or UTF-8
        return None
    return (user, password) if colon else None
