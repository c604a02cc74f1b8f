"""The origin of an HTTP request, as far as a browser states it: any page that a browser shows can send to any address.

| what                                   | against                                                               |
|----------------------------------------|-----------------------------------------------------------------------|
| the Host field is a name of ours       | a foreign name that suddenly resolves to this machine (DNS rebinding) |
| Origin and Sec-Fetch-Site              | forms and scripts of other pages                                      |

Programs send none of the last two, and browsers always send Host. Used by the console and by the node's pages.

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
    """Return True if a page of this host sent the request, or no page at all, as far as the browser states it.

    Args:
        host: the Host field. origin, site: the fields Origin and Sec-Fetch-Site; None where they are not sent.
        scheme: http or https, by which the request came.
    """
    return origin in (None, f"{scheme}://{host}") and site in (None, "same-origin", "none")
