"""Converts the rows of a DataFrame to writes: the columns that the writer takes, and the write of each row.

A frame of the `dcp` source can be written unchanged with `withMeta`: columns that only describe the place of a change
in its history (`vbucket`, `seqno`, ...) are skipped. Any other column is refused, so that nothing is lost silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headwater.errors import OptionError
from headwater.options import nearest
from headwater.wire.datatype import Datatype
from headwater.wire.manifest import DEFAULT
from headwater.wire.times import RELATIVE_SECONDS_MAX

if TYPE_CHECKING:
    from headwater.client.writes import Write, WriteWithMeta

COLUMNS: dict[str, tuple[tuple[str, ...], str]] = {
    "key": (("binary", "string"), "the document's key, 1 to 250 bytes"),
    "value": (("binary", "string"), "the document; of a deletion it is not looked at"),
    "deleted": (("boolean",), "true deletes; null and false store"),
    "event": (("string",), "as of the source: `mutation` and null store, `deletion` and `expiration` delete"),
    "expiry": (("bigint", "int", "timestamp"), "when it runs out: Unix seconds or a timestamp; 0 and null are never"),
    "flags": (("bigint", "int"), "the application's flags, 32 bits unsigned; null is 0"),
    "cas": (("bigint",), "write only over this version; 0 and null: whatever is there. `withMeta`: the CAS to store"),
    "rev_seqno": (("bigint",), "`withMeta` alone: the revision to store"),
    "scope": (("string",), "with `collection`: the scope of the row's collection; null is the default one"),
    "collection": (("string",), "with `scope`: which collection the row goes to; null is the default one"),
    "datatype": (("int",), "bit 4 says that the value begins with extended attributes; `withMeta` alone stores them"),
}
"""Column -> (types it may have, meaning)."""

PASSED_OVER = frozenset(
    {"vbucket", "seqno", "vb_uuid", "snapshot_start", "snapshot_end", "timestamp", "modified_at", "collection_id"}
)

_U64 = (1 << 64) - 1
_DELETES = {"deletion": True, "expiration": True, "mutation": False, None: False}


def check_columns(columns: Sequence[tuple[str, str]], *, with_meta: bool) -> tuple[str, ...]:
    """Check a frame's columns; return those that are written, in the order of `COLUMNS`.

    Args:
        columns: (name, type in Spark's spelling).
        with_meta: True if revision and CAS are stored unchanged.

    Raises:
        OptionError: a column is missing, unknown, or of a type it can't have.
    """
    kinds = dict(columns)
    for name, kind in columns:
        if name not in COLUMNS and name not in PASSED_OVER:
            near = nearest(name, COLUMNS)
            hint = f" (did you mean {near}?)" if near else ""
            raise OptionError("column", name, f"a column that is written{hint}; those are {', '.join(COLUMNS)}")
        if name in COLUMNS and kind not in COLUMNS[name][0]:
            raise OptionError("column", f"{name} {kind}", f"possible: {name} is {' or '.join(COLUMNS[name][0])}")
    tells_deletions = "event" in kinds or "deleted" in kinds
    required = ["key", *([] if tells_deletions else ["value"]), *(["cas", "rev_seqno"] if with_meta else [])]
    for name in required:
        if name not in kinds:
            reason = " with withMeta" if name in ("cas", "rev_seqno") else ""
            raise OptionError("columns", ", ".join(kinds), f"enough: {name} is missing{reason}")
    if ("scope" in kinds) != ("collection" in kinds):
        raise OptionError("columns", ", ".join(kinds), "clear: scope and collection go together")
    if "event" in kinds and "deleted" in kinds:
        raise OptionError("columns", "event, deleted", "clear: both tell what is deleted, keep one of them")
    if "rev_seqno" in kinds and "cas" in kinds and not with_meta:
        allowed = "clear: with withMeta=true both are stored as they are; else drop rev_seqno, and cas is a condition"
        raise OptionError("columns", "cas, rev_seqno", allowed)
    return tuple(name for name in COLUMNS if name in kinds)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a DataFrame; None for columns that it does not have."""

    key: Any = None
    value: Any = None
    deleted: Any = None
    event: str | None = None
    expiry: Any = None
    flags: int | None = None
    cas: int | None = None
    rev_seqno: int | None = None
    scope: str | None = None
    collection: str | None = None
    datatype: int | None = None

    @property
    def path(self) -> str | None:
        """The row's collection, "scope.collection"; None for the default one."""
        if self.scope is None and self.collection is None:
            return None
        return f"{self.scope or DEFAULT}.{self.collection or DEFAULT}"

    @property
    def deletes(self) -> bool:
        """True if the row is a deletion.

        Raises:
            OptionError: its event can't be written.
        """
        if self.event not in _DELETES:
            hint = "; a rollback can't be written: `headwater copy` undoes what it takes back, or filter it out"
            raise OptionError("event", self.event, f"mutation, deletion or expiration{hint}")
        return bool(self.deleted) or _DELETES[self.event]

    @property
    def expiry_seconds(self) -> int:
        """The expiry in Unix seconds.

        Raises:
            OptionError: the number is so small that the server would take it for seconds from now.
        """
        seconds = int(self.expiry.timestamp()) if hasattr(self.expiry, "timestamp") else self.expiry or 0
        if 0 < seconds <= RELATIVE_SECONDS_MAX and not self.deletes:
            raise OptionError("expiry", seconds, "a Unix time; seconds from now are unix_timestamp() + n")
        return seconds

    def write(self) -> Write:
        """Return the write of this row.

        Raises:
            OptionError: the row can't be written.
        """
        from headwater.client.writes import Write  # noqa: PLC0415 -- Spark loads the source in every session

        if self.deletes:
            return Write(self._key(), None, cas=(self.cas or 0) & _U64)
        if (self.datatype or 0) & Datatype.XATTR:
            raise OptionError("datatype", self.datatype, "possible: extended attributes are written withMeta only")
        return Write(self._key(), self._value(), self.flags or 0, self.expiry_seconds, (self.cas or 0) & _U64)

    def write_with_meta(self, *, force: bool = False) -> WriteWithMeta:
        """Return the write that stores the row's revision and CAS unchanged; OptionError as for `write`.

        Args:
            force: True to write over any version.
        """
        from headwater.client.writes import WriteWithMeta  # noqa: PLC0415

        attributes = (self.datatype or 0) & Datatype.XATTR
        return WriteWithMeta(
            self._key(),
            (self.value if attributes else None) if self.deletes else self._value(),
            flags=self.flags or 0,
            expiry=self.expiry_seconds,
            cas=(self.cas or 0) & _U64,
            rev_seqno=(self.rev_seqno or 0) & _U64,
            datatype=attributes,
            deletes=self.deletes,
            expired=self.event == "expiration",
            force=force,
        )

    def _key(self) -> str | bytes:
        if self.key is None:
            raise OptionError("key", None, "a key: it is null")
        return self.key  # type: ignore[no-any-return]

    def _value(self) -> str | bytes:
        if self.value is None:
            raise OptionError("value", None, "a document: it is null; deletions are told by `deleted` or `event`")
        return self.value  # type: ignore[no-any-return]


def rows(batch: Any, names: Sequence[str]) -> Iterator[Row]:
    """Yield an Arrow batch's rows."""
    columns = [batch.column(batch.schema.get_field_index(name)).to_pylist() for name in names]
    for values in zip(*columns, strict=True):
        yield Row(**dict(zip(names, values, strict=True)))
