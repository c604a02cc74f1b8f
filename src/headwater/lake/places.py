"""Which store keeps a table, by the place's name: a folder of a file system, or the url of an object store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

from headwater.errors import TableError
from headwater.lake.log import FOLDER
from headwater.lake.objects import ObjectStore
from headwater.lake.store import TableStore, folder_of

CHANGES, QUARANTINE = "_changes", "_quarantine"
"""The ends of the names of a change log and of a quarantine, behind that of their table."""


_OWN = frozenset({FOLDER, "_index", "_checkpoint"})

BELOW_MAX = 20
"""So many tables below a folder are counted, no more."""


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


def check_apart(place: str) -> None:
    """See to it that a new table has its folder for itself: Spark's VACUUM removes from a table's folder whatever its
    log does not name, and with it the files of tables below.

    Raises:
        TableError: it holds tables, those of collections for example, or lies inside of one.
    """
    below = list(islice(_tables_below(place), BELOW_MAX + 1))
    if below:
        count = f"more than {BELOW_MAX}" if len(below) > BELOW_MAX else str(len(below))
        told = f"the folder holds {count} {'table' if len(below) == 1 else 'tables'}, {below[0]} for one"
        advice = "mirror with --collections or --scope if they are a bucket's collections, or into another place"
        raise TableError(place, f"{told}, and a table needs it for itself: {advice}")
    # A bucket of an object store may let us look at our own prefix only, so nobody asks above it.
    above = [] if is_url(place) else list(Path(place).parents)[:4]
    if (table := next((folder for folder in above if (folder / FOLDER).is_dir()), None)) is not None:
        told = f"it lies in the folder of a table, {table}, which that one needs for itself"
        raise TableError(place, f"{told}: mirror into another place")


def check_clear(store: TableStore, made: Callable[[], bool]) -> None:
    """See to it that a new table's folder has nothing left of another one: its log may only be away.

    Args:
        store: of the folder.
        made: asked whether there is a log by now: somebody else may be making the same table.

    Raises:
        TableError: it has.
    """
    left = [listed.path for listed in store.list() if listed.path.endswith(".parquet")]
    left += [name for name in store.folders() if name in _OWN - {FOLDER}]
    if left and not made():
        told = f"there is no log of a table here, but there are {', '.join(sorted(left)[:3])}"
        advice = "bring the log back, or remove what is left to begin anew, or mirror into another place"
        raise TableError(store.root, f"{told}{', ...' if len(left) > 3 else ''}: {advice}")


def _tables_below(place: str) -> Iterator[str]:
    """Tables one folder down, and two, as those of collections are."""
    store = store_of(place)
    for name in store.folders():
        if name in _OWN:
            continue
        within = store.folders(name)
        if FOLDER in within:
            yield name
        else:
            yield from (f"{name}/{each}" for each in within if FOLDER in store.folders(f"{name}/{each}"))
