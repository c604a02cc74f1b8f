"""Which store keeps a table, by the place's name: a folder of a file system, or the url of an object store."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from headwater.lake.objects import ObjectStore
from headwater.lake.store import TableStore, folder_of

QUARANTINE = "_quarantine"
"""The end of a quarantine's name, behind that of its table."""


def is_url(place: str | Path) -> bool:
    """Whether a place is no folder of a file system, but named by a url of another scheme than `file`."""
    return "://" in str(place) and urlsplit(str(place)).scheme != "file"


def place_of(place: str | Path) -> str:
    """Return a place in the form under which it is known from everywhere: an absolute folder, or a url.

    Raises:
        OptionError: an empty place.
    """
    return str(place).rstrip("/") if is_url(place) else folder_of(place)


def store_of(place: str | Path) -> TableStore:
    """Return the store of a place.

    Raises:
        OptionError: a url of a scheme under which no table can be kept.
    """
    return ObjectStore(str(place)) if is_url(place) else TableStore(place)
