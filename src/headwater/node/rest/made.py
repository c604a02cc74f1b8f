"""A page as it is sent."""

from __future__ import annotations

from typing import NamedTuple


class Made(NamedTuple):
    """A page as it is sent."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"
