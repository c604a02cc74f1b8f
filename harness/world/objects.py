"""An object store of a simulated world, with the interface of real stores' libraries (fsspec): requests take time, and
requests and answers get lost.

    store = ObjectServer(schedule)
    store.lost = 0.2                        one request in five comes to nothing, or its answer does
    with served(store): ObjectStore("s3://lake/table").create(...)

The product's own class of object stores uses it. An object appears whole, and a process that is killed between a
request and its answer has made a change without knowing it.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

from harness.simulation.host import Clock
from harness.world.blocking import current
from headwater.backup import archive, place
from headwater.lake import objects, upkeep, vacuum
from headwater.lake.objects import _Shared

if TYPE_CHECKING:
    from harness.simulation.scheduler import Schedule

T = TypeVar("T")
REQUEST_SECONDS = 0.03
RETENTION_SECONDS, UNDER_WAY_SECONDS, VACUUM_SECONDS, CHECKPOINT_EVERY = 10.0, 30.0, 5.0, 6
REPEATS_SHARE = 0.5
"""The share of changes without an answer that the library itself requests once more."""

HASTY = {
    (vacuum, "RETENTION"): RETENTION_SECONDS,
    (vacuum, "LOG_RETENTION"): RETENTION_SECONDS,
    (vacuum, "UNDER_WAY_SECONDS"): UNDER_WAY_SECONDS,
    (upkeep, "VACUUM_SECONDS"): VACUUM_SECONDS,
    (upkeep, "CHECKPOINT_EVERY"): CHECKPOINT_EVERY,
}
"""Constants of upkeep, with their values in a simulated world."""


class NoAnswer(Exception):  # noqa: N818 - says what happened
    """The store's library has given up: an error of its own kind, as each library has them."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object, and its time in Unix seconds."""

    content: bytes
    modified: float


class ObjectServer:
    """The store.

    Attributes:
        held: objects by name. lost: the share of requests that get no answer.
        counts: requests, and those without an answer.
        on_put: called with the name of each object that was put.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.held: dict[str, StoredObject] = {}
        self.lost = 0.0
        self.counts: Counter[str] = Counter()
        self.on_put: list[Callable[[str], None]] = []
        self._clock = Clock(schedule)
        self._random = Random(schedule.random.getrandbits(64))  # noqa: S311 - must be repeatable

    # --- what libraries of fsspec offer -----------------------------------------------------------------------------

    @staticmethod
    def _strip_protocol(path: str) -> str:
        return path.partition("://")[2].rstrip("/")

    def cat_file(self, key: str) -> bytes:
        """Return an object's bytes."""
        return self._carried_out(lambda: self._object(key).content)

    def open(self, key: str, *_: object, **__: object) -> io.BytesIO:
        """Return an object as a file, with the content of this moment."""
        return io.BytesIO(self.cat_file(key))

    def exists(self, key: str) -> bool:
        """Return True if there is an object of this name, or one below it."""
        return self._carried_out(lambda: "/" not in key or key in self.held or bool(self._below(key)))

    def info(self, key: str) -> dict[str, Any]:
        """Return an object's size."""
        return self._carried_out(lambda: {"size": len(self._object(key).content)})

    def put_file(self, local: str, key: str) -> None:
        """Put a local file as an object."""
        self.pipe_file(key, Path(local).read_bytes())

    def pipe_file(self, key: str, content: bytes, mode: str = "overwrite") -> None:
        """Put an object; with the mode `create` only if there is none."""

        def put() -> None:
            if mode == "create" and key in self.held:
                raise FileExistsError(key)
            self.held[key] = StoredObject(bytes(content), self._clock.time_ns() / 1e9)
            for look in self.on_put:
                look(key)

        self._carried_out(put, changes=True)

    def rm_file(self, key: str) -> None:
        """Remove an object."""
        self._carried_out(lambda: self.held.pop(key, None), changes=True)

    def rm(self, key: str, recursive: bool = False) -> None:
        """Remove an object, and all below it, one after the other."""
        for name in [key, *self._below(key)]:
            self.rm_file(name)

    def ls(self, key: str, detail: bool = True) -> list[dict[str, Any]]:
        """Return the names directly below a name."""
        return self._carried_out(lambda: list(self._listed(key)))

    # --- within -----------------------------------------------------------------------------------------------------

    def _object(self, key: str) -> StoredObject:
        if key not in self.held:
            raise FileNotFoundError(key)
        return self.held[key]

    def _below(self, key: str) -> list[str]:
        return [name for name in sorted(self.held) if name.startswith(f"{key}/")]

    def _listed(self, key: str) -> Iterator[dict[str, Any]]:
        found = self._below(key)
        if not found:
            raise FileNotFoundError(key)
        folders: set[str] = set()
        for name in found:
            first, _, rest = name.removeprefix(f"{key}/").partition("/")
            if not rest:
                stored = self.held[name]
                put = datetime.fromtimestamp(stored.modified, UTC)
                yield {"name": name, "type": "file", "size": len(stored.content), "LastModified": put}
            elif first not in folders:
                folders.add(first)
                yield {"name": f"{key}/{first}", "type": "directory", "size": 0}

    def _carried_out(self, effect: Callable[[], T], *, changes: bool = False) -> T:
        """Delay a request, carry out its effect, and delay its answer; either may be lost. The harness's own requests
        take no time.
        """
        thread = current()
        if thread is None:
            return effect()
        self.counts["requests of object stores"] += 1
        thread.sleep(self._random.random() ** 2 * REQUEST_SECONDS)
        if self._is_lost():
            raise NoAnswer("the request was lost")
        answer = effect()
        thread.sleep(self._random.random() ** 2 * REQUEST_SECONDS)
        if self._is_lost():
            if changes and self._random.random() < REPEATS_SHARE:
                return effect()
            raise NoAnswer("the answer was lost")
        return answer

    def _is_lost(self) -> bool:
        is_lost = self.lost > 0 and self._random.random() < self.lost
        self.counts["answers of object stores lost"] += is_lost
        return is_lost


@contextmanager
def served(server: ObjectServer) -> Iterator[None]:
    """Make this the store of headwater's object stores for a block, with simulated time for backups, and seconds
    instead of days for the retention of old files.
    """
    clock = server._clock

    def connected(url: str) -> tuple[_Shared, str]:
        thread = current()
        kept = {} if thread is None else thread.process.kept
        return kept.setdefault("store", _Shared(server)), server._strip_protocol(url)

    times = SimpleNamespace(
        now=lambda zone: datetime.fromtimestamp(clock.time_ns() / 1e9, zone), fromisoformat=datetime.fromisoformat
    )
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(objects, "_connected", connected))
        stack.enter_context(mock.patch.object(place, "import_module", lambda name: None))
        stack.enter_context(mock.patch.object(archive, "datetime", times))
        for (module, name), value in HASTY.items():
            stack.enter_context(mock.patch.object(module, name, value))
        yield
