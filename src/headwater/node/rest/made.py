"""An HTTP page, ready to be sent."""

from __future__ import annotations

from typing import NamedTuple


class Made(NamedTuple):
    """An HTTP page, ready to be sent.

    Attributes:
        body: the content.
        status: the HTTP status.
        content_type: the content's type.
    """

    body: bytes
    status: int = 200
    content_type: str = "application/json"
