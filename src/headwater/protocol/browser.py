"""Checks that an HTTP request comes from this server's own pages: any page in a browser can send requests to any
address.

| what                                   | against                                                               |
|----------------------------------------|-----------------------------------------------------------------------|
| the Host field is a name of ours       | a foreign name that suddenly resolves to this machine (DNS rebinding) |
| Origin and Sec-Fetch-Site              | forms and scripts of other pages                                      |

Programs send neither Origin nor Sec-Fetch-Site; browsers always send Host. Used by the console and by the node's pages.

Source: RFC 6454 (Origin), W3C Fetch Metadata (Sec-Fetch-Site), RFC 9110, 7.2 (Host).
"""

from __future__ import annotations

__all__ = ["LOOPBACK", "READING", "is_own", "name_of"]

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""Names of this machine that no other machine can have."""
READING = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing (RFC 9110, 9.2.1): another page may send them, and can't read the answer."""


def name_of(host: str) -> str:
    """Return the name in a Host field, without its port, in lower case."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


def is_own(host: str, origin: str | None, site: str | None, scheme: str = "http") -> bool:
    """Return True if the request came from a page of this host, or from no page (a program, an address that the user
    typed), as far as the browser states it.

    Args:
        host: the Host field.
        origin, site: the fields Origin and Sec-Fetch-Site; None where the request has none.
        scheme: http or https, the scheme of the request.
    """
    return origin in (None, f"{scheme}://{host}") and site in (None, "same-origin", "none")
