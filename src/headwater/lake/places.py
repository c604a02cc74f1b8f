"""Chooses the store for a table by its place: a folder of a file system, or the url of an object store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

from headwater.errors import TableError
from headwater.lake.layout import DATA, METADATA, OF_DELTA, VECTORS
from headwater.lake.log import FOLDER
from headwater.lake.objects import ObjectStore
from headwater.lake.store import TableStore, folder_of

CHANGES, QUARANTINE = "_changes", "_quarantine"
"""The suffixes of a change log's and a quarantine's name, after the name of their table."""


_OWN = frozenset({FOLDER, OF_DELTA.iceberg, VECTORS, "_index", "_checkpoint"})

BELOW_MAX = 20
"""The number of tables below a folder after which counting stops."""


def is_url(place: str | Path) -> bool:
    """Return True if a place is a url of another scheme than `file`, so no folder of a file system."""
    return "://" in str(place) and urlsplit(str(place)).scheme != "file"


def place_of(place: str | Path) -> str:
    """Return a place in a form that does not depend on the working directory: an absolute folder, or a url.

    Raises:
        OptionError: an empty place.
    """
    return str(place).rstrip("/") if is_url(place) else folder_of(place)


def store_of(place: str | Path) -> TableStore:
    """Return the store of a place.

    Raises:
        OptionError: a url of a scheme that can't hold a table.
    """
    return ObjectStore(str(place)) if is_url(place) else TableStore(place)


def check_apart(place: str) -> None:
    """Check that a new table has its folder for itself: Spark's VACUUM removes all files from a table's folder that the
    table's log does not name, including the files of tables below it.

    Raises:
        TableError: the folder holds tables, those of collections for example, or lies inside a table's folder.
    """
    below = list(islice(_tables_below(place), BELOW_MAX + 1))
    if below:
        count = f"more than {BELOW_MAX}" if len(below) > BELOW_MAX else str(len(below))
        problem = f"the folder holds {count} {'table' if len(below) == 1 else 'tables'}, {below[0]} for one"
        advice = "mirror with --collections or --scope if they are a bucket's collections, or into another place"
        raise TableError(place, f"{problem}, and a table needs it for itself: {advice}")
    # A bucket of an object store may let us look at our own prefix only, so nobody asks above it.
    above = [] if is_url(place) else list(Path(place).parents)[:4]
    if (table := next((folder for folder in above if (folder / FOLDER).is_dir()), None)) is not None:
        problem = f"it lies in the folder of a table, {table}, which that one needs for itself"
        raise TableError(place, f"{problem}: mirror into another place")


def check_clear(store: TableStore, exists: Callable[[], bool]) -> None:
    """Check that a new table's folder has no files of another table whose log may only be away for a moment.

    Args:
        store: of the folder.
        exists: returns True if there is a log by now; another process may be creating the same table.

    Raises:
        TableError: the folder has such files.
    """
    files = [file.path for folder in ("", DATA, METADATA) for file in store.list(folder)]
    remains = [path for path in files if path.endswith((".parquet", ".metadata.json"))]
    remains += [name for name in store.folders() if name in _OWN - {FOLDER}]
    if remains and not exists():
        problem = f"there is no log of a table here, but there are {', '.join(sorted(remains)[:3])}"
        advice = "bring the log back, or remove what is left to begin anew, or mirror into another place"
        raise TableError(store.root, f"{problem}{', ...' if len(remains) > 3 else ''}: {advice}")


def _tables_below(place: str) -> Iterator[str]:
    """Yield the tables one and two folders down; tables of collections lie two folders down."""
    store = store_of(place)
    for name in store.folders():
        if name in _OWN:
            continue
        names = store.folders(name)
        if FOLDER in names:
            yield name
        else:
            yield from (f"{name}/{folder}" for folder in names if FOLDER in store.folders(f"{name}/{folder}"))
