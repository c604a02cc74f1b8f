"""An HTTP page, ready to be sent."""

from __future__ import annotations

from typing import NamedTuple


class Made(NamedTuple):
    """An HTTP page, ready to be sent."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"
