"""The options of a read or a write, checked and typed: what the reader, the planner and the writer go by.

Spark hands options over as strings, in a mapping that ignores case, together with a few of its own (`SPARKS_OWN`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from headwater.errors import OptionError
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.persistence import MinPersisted
from headwater.spark.offsets import Offset
from headwater.spark.options import OPTIONS, WRITE_OPTIONS, SourceOption

SPARKS_OWN = frozenset({"path", "paths", "checkpointlocation"})
"""Options that Spark itself puts among a source's; `path` is the argument of `load(...)`, taken for `url`."""
OF_TABLES = frozenset({"owner"})
"""Properties that Spark hands over as options when a table is made in its catalog."""
VIEW_INSTEAD = (
    "possible: of a table in its catalog Spark gives a Python source no options when it is read; "
    "CREATE TEMPORARY VIEW name USING dcp OPTIONS (url 'couchbase://...') makes one that can be"
)


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The options of one read, checked and typed; pickled to every task.

    Attributes:
        collections, scope: the choice, by names; None for none.
        coverage: no option: the same by ids, as a batch was planned.
        map_version: no option: (epoch, rev) of the cluster map that a batch was planned by. A task believes no older.
    """

    url: str
    user: str | None
    password: str | None
    vbuckets: tuple[int, ...] | None
    starting_offsets: Offset
    ending_seqnos: Mapping[int, int] | None
    partitions: int | None
    max_changes: int | None
    key_format: str
    value_format: str
    rollback_policy: str
    poll_interval_seconds: float
    retry_seconds: float
    window_bytes: int
    xattrs: bool
    collections: tuple[str, ...] | None = None
    scope: str | None = None
    fail_on_data_loss: bool = False
    min_persisted: MinPersisted | None = None
    transaction_records: bool = False
    coverage: Coverage | None = None
    map_version: tuple[int, int] = (0, 0)

    def __repr__(self) -> str:
        return f"Settings({self.url})"

    @property
    def chooses(self) -> bool:
        """Whether anything but the default collection alone is read."""
        return self.collections is not None or self.scope is not None


def parse(given: Mapping[str, str], *, streaming: bool | None = None) -> SourceSettings:
    """Check what the user wrote and return it typed.

    Args:
        given: option names (any case) and texts, as Spark hands them over.
        streaming: whether this is for `readStream`; some options fit only one of the two. None: not known yet.

    Raises:
        OptionError: an unknown option, a value it can't have, or one that does not fit this kind of read.
    """
    values = {option.name: option.default for option in OPTIONS}
    for option, text in _recognised(given, OPTIONS):
        if streaming is not None and not (option.streaming if streaming else option.batch):
            kind, other = ("streaming", "batch") if streaming else ("batch", "streaming")
            raise OptionError(option.name, text, f"for a {kind} read; only a {other} read takes this option")
        values[option.name] = option.read(text)
    _require_url(values, "load(url)")
    _split_login(values)
    if values["scope"] is not None and values["collections"] is not None:
        raise OptionError("scope", values["scope"], "given without collections: it is one or the other")
    if streaming is False and values["startingOffsets"].latest:
        raise OptionError("startingOffsets", "latest", "possible for a batch read, which would be empty")
    return SourceSettings(*values.values())


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """The options of one write, checked and typed; pickled to every task."""

    url: str
    user: str | None
    password: str | None
    dead_letters: str | None
    with_meta: bool
    retry_seconds: float
    collection: str | None = None
    force: bool = False
    """With metadata: over newer versions as well. No option of Spark's: a restore sets it."""

    def __repr__(self) -> str:
        return f"WriteSettings({self.url})"


def parse_write(given: Mapping[str, str]) -> WriteSettings:
    """Check what the user wrote and return it typed; the arguments and errors are those of `parse`."""
    values = {option.name: option.default for option in WRITE_OPTIONS}
    for option, text in _recognised(given, WRITE_OPTIONS):
        values[option.name] = option.read(text)
    _require_url(values, "save(url)")
    _split_login(values)
    return WriteSettings(*values.values())


def _split_login(values: dict[str, Any]) -> None:
    """Take a name and a password out of the url, which is shown, logged and handed to tasks."""
    from headwater.client.routing import parse as parse_url  # noqa: PLC0415 -- Spark loads the source in every session

    if "@" in values["url"]:
        target = parse_url(values["url"])
        values["user"], values["password"] = target.login(values["user"], values["password"])
        values["url"] = target.url


def _require_url(values: Mapping[str, object], otherwise: str) -> None:
    if values["url"] is None:
        raise OptionError("url", "", f"{OPTIONS[0].allowed}; give it as an option or as {otherwise}")


def _recognised(given: Mapping[str, str], options: tuple[SourceOption, ...]) -> Iterator[tuple[SourceOption, str]]:
    lowered = {name.lower(): text for name, text in given.items()}
    by_name = {option.name.lower(): option for option in options}
    if "path" in lowered:
        lowered.setdefault("url", lowered["path"])
    if lowered.keys() >= OF_TABLES:
        raise OptionError("url", "CREATE TABLE ... USING dcp", VIEW_INSTEAD)
    for name, text in lowered.items():
        if name in by_name:
            yield by_name[name], text
        elif name not in SPARKS_OWN:
            near = get_close_matches(name, by_name, n=1)
            hint = f" (did you mean {by_name[near[0]].name}?)" if near else ""
            known = ", ".join(option.name for option in options)
            raise OptionError(name, text, f"known to the dcp source{hint}; its options are {known}")
