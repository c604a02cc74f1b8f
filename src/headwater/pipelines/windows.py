"""Windows of time over a bucket's changes: counts by prefix of the key, and the hottest keys.

The time of a change is that of its CAS, the clock of the node that owned the vbucket. A watermark follows the newest
time seen, some seconds behind; a window before it is closed, and later changes for it are counted as late. So memory
holds only open windows.

Hot keys are found by Apache DataSketches' frequent items (Misra-Gries with weights; Anderson et al. 2017): of n changes
in a window each count is right within 3.5 n / 2^size, and every key that is more frequent than that is found, in memory
for 0.75 * 2^size keys. Sketches that are merged keep that bound, for the sum of their changes.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import repeat
from typing import Any

from headwater.errors import OptionError

NANOSECONDS = 1_000_000_000
EARLIEST_NS = 1_000_000_000 * NANOSECONDS
AHEAD_NS = 3600 * NANOSECONDS
"""A CAS from before 2001, or an hour ahead of our clock, tells no time: somebody has set it."""

BETWEEN = "/"
"""Stands between the name of a collection and the prefix or key; no name of one has it."""

OTHERS = "…"
"""Stands for all prefixes that are too many."""

UNKNOWN = "?"
"""Stands for a collection that came and went before its name could be asked for."""

SKETCH_SIZE = 10
U64 = (1 << 64) - 1


@dataclass(frozen=True)
class WindowRules:
    """The rules by which changes are counted in windows of time.

    Args:
        seconds: the length of a window.
        delay_seconds: the time by which the watermark is behind the newest change.
        separator: the text that ends a prefix.
        depth: the number of separators in a prefix.
        prefixes_max: the most prefixes of a window; further ones are counted under `…`.
        hot: the number of hot keys in the result.
        by_collection: True to put the names of their collections before prefixes and keys: `shop.orders/user:`.

    Raises:
        OptionError: a number that is too small, or an empty separator.
    """

    seconds: int = 10
    delay_seconds: int = 5
    separator: str = ":"
    depth: int = 1
    prefixes_max: int = 1000
    hot: int = 10
    by_collection: bool = False

    def __post_init__(self) -> None:
        minimums = {"seconds": 1, "delay_seconds": 0, "depth": 1, "prefixes_max": 1, "hot": 0}
        for name, number in minimums.items():
            if getattr(self, name) < number:
                raise OptionError(name, getattr(self, name), f"a number of {number} or more")
        if not self.separator:
            raise OptionError("separator", "", "one character or more, such as :")

    @property
    def length_ns(self) -> int:
        """The length of a window in nanoseconds."""
        return self.seconds * NANOSECONDS

    def prefix(self, key: str) -> str:
        """Return a key's prefix with its separator; empty if it has none."""
        parts = key.split(self.separator, self.depth)
        return self.separator.join(parts[:-1]) + self.separator if len(parts) > 1 else ""


@dataclass
class PrefixCounts:
    """The counts of one prefix in one window.

    Attributes:
        stored, deleted, expired: changes of each kind.
        expiring: the stored ones that have an expiry.
        bytes: the bytes of keys and values; `largest` is the size of the largest value.
    """

    stored: int = 0
    deleted: int = 0
    expired: int = 0
    expiring: int = 0
    bytes: int = 0
    largest: int = 0

    @property
    def changes(self) -> int:
        """The sum of all changes."""
        return self.stored + self.deleted + self.expired

    def add(self, other: PrefixCounts) -> None:
        """Add counts of the same prefix and window."""
        for name in ("stored", "deleted", "expired", "expiring", "bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.largest = max(self.largest, other.largest)

    def to_list(self) -> list[int]:
        """Return the counts in their order, for `PrefixCounts(*counts)`."""
        return [self.stored, self.deleted, self.expired, self.expiring, self.bytes, self.largest]


@dataclass(frozen=True)
class HotKey:
    """A key that changed often, with the approximate number of its changes and the largest possible error of that
    number.
    """

    key: str
    changes: int
    error: int


class HotKeys:
    """The most frequent keys of a window, in bounded memory.

    Args:
        data: a result of `to_text`; None for a new one.

    Raises:
        OptionError: the library is not installed.
    """

    def __init__(self, data: str | None = None) -> None:
        try:
            import datasketches
        except ModuleNotFoundError:
            message = "possible without datasketches: pip install 'datasketches>=5.2'"
            raise OptionError("hot", "10", message) from None
        self._library = datasketches
        kind = datasketches.frequent_strings_sketch
        self._sketch: Any = kind(SKETCH_SIZE) if data is None else kind.deserialize(base64.b64decode(data))

    def add(self, key: str) -> None:
        """Count a change."""
        self._sketch.update(key)

    def merge(self, other: HotKeys) -> None:
        """Add the counts of another."""
        self._sketch.merge(other._sketch)

    def to_text(self) -> str:
        """Return the counts as text."""
        return base64.b64encode(self._sketch.serialize()).decode()

    def top(self, count: int) -> list[HotKey]:
        """Return the hottest keys, the hottest first; without those that may be no hotter than an omitted key."""
        kind = self._library.frequent_items_error_type.NO_FALSE_POSITIVES
        keys = [HotKey(key, low, high - low) for key, _, low, high in self._sketch.get_frequent_items(kind)]
        return sorted(keys, key=lambda hot: (-hot.changes, hot.key))[:count]


@dataclass
class Window:
    """One window: counts by prefix, and its hot keys."""

    prefixes: dict[str, PrefixCounts] = field(default_factory=dict)
    hot: HotKeys | None = None

    def of(self, prefix: str, prefixes_max: int, collection: str = "") -> PrefixCounts:
        """Return the counts of a prefix, to be changed in place.

        Args:
            prefixes_max: the most prefixes of the window; the changes of further ones are counted together.
            collection: the collection's part of the prefix, so that these are counted by collection; empty without
                collections.
        """
        if prefix not in self.prefixes and len(self.prefixes) >= prefixes_max:
            prefix = collection + OTHERS
        return self.prefixes.setdefault(prefix, PrefixCounts())

    def merge(self, other: Window, prefixes_max: int, *, by_collection: bool = False) -> None:
        """Add the counts of another window of the same time."""
        for prefix, counts in other.prefixes.items():
            self.of(prefix, prefixes_max, whose_of(prefix) if by_collection else "").add(counts)
        if other.hot is not None:
            self.hot = self.hot or HotKeys()
            self.hot.merge(other.hot)

    def to_json(self) -> dict[str, Any]:
        """Return the window as JSON types."""
        prefixes = {prefix: counts.to_list() for prefix, counts in self.prefixes.items()}
        return {"prefixes": prefixes, "hot": None if self.hot is None else self.hot.to_text()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Window:
        """Read the result of `to_json`."""
        prefixes = {prefix: PrefixCounts(*counts) for prefix, counts in content["prefixes"].items()}
        return cls(prefixes, None if content["hot"] is None else HotKeys(content["hot"]))


@dataclass
class Windows:
    """Windows by their start (nanoseconds), the newest time, and the changes outside of all windows.

    Attributes:
        newest_ns: the newest time of a change.
        late: number of changes whose window was closed. unclocked: number of changes whose CAS is no time.
    """

    open: dict[int, Window] = field(default_factory=dict)
    newest_ns: int = 0
    late: int = 0
    unclocked: int = 0

    def count(self, rules: WindowRules, batch: Any, now_ns: int | None = None) -> None:
        """Count the changes of an Arrow batch.

        Args:
            rules: what to count.
            batch: has the columns event, key, cas, expiry; value for sizes; scope and collection for `by_collection`.
            now_ns: the time now; None to ask the clock.
        """
        import pyarrow.compute as pc

        names = ("event", "key", "cas", "expiry")
        events, keys, cas, expiries = (batch.column(name).to_pylist() for name in names)
        sizes: Iterable[int | None] = [0] * batch.num_rows
        if "value" in batch.schema.names:
            sizes = pc.binary_length(batch.column("value")).to_pylist()
        latest = (time.time_ns() if now_ns is None else now_ns) + AHEAD_NS
        collections: Iterable[str] = repeat("", batch.num_rows)
        if rules.by_collection:
            paths = zip(batch.column("scope").to_pylist(), batch.column("collection").to_pylist(), strict=True)
            collections = (f"{scope or UNKNOWN}.{collection or UNKNOWN}{BETWEEN}" for scope, collection in paths)
        for collection_path, event, key, clock, expiry, size in zip(
            collections, events, keys, cas, expiries, sizes, strict=True
        ):
            # A rollback row has no key: it is no change.
            if key is not None:
                self._count(rules, (collection_path, key), event, (clock & U64, latest), expiry, size or 0)

    def _count(
        self,
        rules: WindowRules,
        document: tuple[str, bytes],
        event: str,
        clock: tuple[int, int],
        expiry: int,
        size: int,
    ) -> None:
        (collection, key), (when, latest) = document, clock
        if not EARLIEST_NS <= when <= latest:
            self.unclocked += 1
            return
        self.newest_ns = max(self.newest_ns, when)
        name = key.decode("utf-8", "backslashreplace")
        window = self.open.setdefault(when - when % rules.length_ns, Window())
        counts = window.of(collection + rules.prefix(name), rules.prefixes_max, collection)
        counts.bytes += len(key) + size
        if event == "mutation":
            counts.stored += 1
            counts.expiring += expiry != 0
            counts.largest = max(counts.largest, size)
        elif event == "deletion":
            counts.deleted += 1
        else:
            counts.expired += 1
        if rules.hot:
            window.hot = window.hot or HotKeys()
            window.hot.add(collection + name)

    def watermark_ns(self, rules: WindowRules) -> int:
        """Return the time before which windows are closed: `delay_seconds` before the newest change."""
        return self.newest_ns - rules.delay_seconds * NANOSECONDS

    def merge(self, rules: WindowRules, results: Iterable[Windows]) -> None:
        """Add the counts of a batch's tasks; those for windows that are closed by now are late."""
        # The watermark of before this batch: its tasks read different vbuckets, and none of them makes the others'
        # changes late.
        closed = self.watermark_ns(rules)
        for other in results:
            self.late, self.unclocked = self.late + other.late, self.unclocked + other.unclocked
            for start, window in other.open.items():
                if start + rules.length_ns <= closed and start not in self.open:
                    self.late += sum(counts.changes for counts in window.prefixes.values())
                else:
                    self.open.setdefault(start, Window()).merge(
                        window, rules.prefixes_max, by_collection=rules.by_collection
                    )
            self.newest_ns = max(self.newest_ns, other.newest_ns)

    def close(self, rules: WindowRules, *, all_of_them: bool = False) -> list[tuple[int, Window]]:
        """Remove and return the windows before the watermark, or all, the oldest first."""
        mark = self.watermark_ns(rules)
        closed = [start for start in sorted(self.open) if all_of_them or start + rules.length_ns <= mark]
        return [(start, self.open.pop(start)) for start in closed]

    def to_json(self) -> dict[str, Any]:
        """Return the windows as JSON types."""
        windows = {str(start): window.to_json() for start, window in sorted(self.open.items())}
        return {"open": windows, "newest_ns": self.newest_ns, "late": self.late, "unclocked": self.unclocked}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Windows:
        """Read the result of `to_json`; {} gives no windows."""
        windows = {int(start): Window.from_json(window) for start, window in content.get("open", {}).items()}
        return cls(windows, content.get("newest_ns", 0), content.get("late", 0), content.get("unclocked", 0))


def whose_of(name: str) -> str:
    """Return the collection's part of a prefix or key that was counted by collection, up to its separator."""
    return name[: name.index(BETWEEN) + 1]


def split(name: str, *, by_collection: bool) -> dict[str, str]:
    """Split a prefix or key that was counted by collection into its parts: scope, collection and (under "")
    the rest.
    """
    if not by_collection:
        return {"": name}
    path, _, key_text = name.partition(BETWEEN)
    scope, _, collection = path.partition(".")
    return {"scope": scope, "collection": collection, "": key_text}


def instant(nanoseconds: int) -> datetime:
    """Return a time of the nodes' clock."""
    return datetime.fromtimestamp(nanoseconds // 1000 / 1_000_000, UTC)
