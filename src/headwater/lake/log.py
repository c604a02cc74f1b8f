"""The table's log: reads and writes Delta's commits, the table's state version by version.

`_delta_log/<version>.json` holds the actions of a commit, one JSON object a line; `<version>.checkpoint.parquet` the
state after all commits up to it. `TableLog.refresh` asks for the next version until there is none, so a log that has
nothing new costs one request.

A log is identified by the table's id and by the bytes of the last commit that was read. Somebody may move the folder
away and create another table there, or a mount may be gone for a moment. So a commit is written only behind the very
commit that it continues, and commits that continue another one are not read (docs/decisions/0098).

A table that another writer created is checked before anything is written: a protocol feature, a property or a column
that we do not know refuses the table. Source: Delta's PROTOCOL.md.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from headwater.errors import CorruptStore, TableAway, TableChanged, UnsupportedTable
from headwater.invariants import invariant
from headwater.lake import checkpoints, row_ids, vectors
from headwater.lake.layout import FEATURE, OF_DELTA, OF_ICEBERG, TableLayout
from headwater.lake.row_ids import IdColumns
from headwater.lake.shape import TYPE_FEATURES, WIDENING, arrow_type
from headwater.lake.store import Before, TableStore
from headwater.lake.vectors import Descriptor

FOLDER = "_delta_log"
READER, READER_PLAIN, WRITER = 3, 1, 7
"""Protocol versions: readers of a table with deletion vectors, readers of a table without them, writers."""
READER_FEATURES = ("deletionVectors",)
WRITER_FEATURES = ("deletionVectors", "domainMetadata")
VECTORS = "delta.enableDeletionVectors"
"""The property that allows new deletion vectors; the table feature alone does not allow them."""

HARMLESS = frozenset({"appendOnly", "changeDataFeed", "checkConstraints", "generatedColumns", "invariants"})
HARMLESS |= {"timestampNtz", "vacuumProtocolCheck", "identityColumns", "allowColumnDefaults", "checkpointProtection"}
"""Features that bind a writer only if a property or a column uses them; those are checked as well."""

_BINDING_PROPERTIES = ("delta.appendOnly", "delta.enableChangeDataFeed")
_BINDING_FIELDS = ("delta.invariants", "delta.generationExpression", "delta.identity.start", "CURRENT_DEFAULT")

COMMIT = re.compile(r"\d{20}\.json")
"""The name of a commit's file."""

DOMAIN = "headwater.mirror"
"""The domain under which the log keeps a mirror's record (`lake/commit.py`)."""

ENGINE = "headwater"
RESTORE_BACK_MAX = 1000
"""The number of commits before a checkpoint in which a mirror's record is looked for; commits without one are folds."""

AWAY = "the table that was here is away: bring it back, as a mount; a mirror that is started again makes it anew"
Action = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of one version of the table.

    Attributes:
        add: the log's `add` action.
        rows: number of rows, dead ones included; None if its writer left no statistics.
        vbuckets: lowest and highest vbucket of its rows; None if unknown.
    """

    add: Action
    rows: int | None
    vbuckets: tuple[int, int] | None

    @property
    def path(self) -> str:
        """The file's path in the file system; the log has it as a url."""
        return unquote(self.add["path"])

    @property
    def size(self) -> int:
        """The size in bytes."""
        return int(self.add["size"])

    @property
    def vector(self) -> Descriptor | None:
        """The file's deletion vector, or None."""
        vector: Descriptor | None = self.add.get("deletionVector")
        return vector

    @property
    def first_row(self) -> int | None:
        """The id of its first row, if the table keeps ids; the rows behind it count on (lake/row_ids.py)."""
        first: int | None = self.add.get("baseRowId")
        return first

    @property
    def commit(self) -> int | None:
        """The version that changed its rows, if the table keeps ids."""
        version: int | None = self.add.get("defaultRowCommitVersion")
        return version

    @property
    def dead(self) -> int:
        """The number of dead rows."""
        return int(self.vector["cardinality"]) if self.vector else 0

    def may_hold(self, lowest: int, highest: int) -> bool:
        """Return True if the file may have rows of vbuckets in this range."""
        return self.vbuckets is None or (self.vbuckets[0] <= highest and lowest <= self.vbuckets[1])


def data_file(add: Action) -> DataFile:
    """Return the data file that an `add` action describes."""
    stats = json.loads(add["stats"]) if add.get("stats") else {}
    low, high = ((stats.get(side) or {}).get("vbucket") for side in ("minValues", "maxValues"))
    bounds = (int(low), int(high)) if low is not None and high is not None else None
    return DataFile(add, stats.get("numRecords"), bounds)


def removal(file: DataFile, now_ms: int, *, data_change: bool = True) -> Action:
    """Return the `remove` action for a file of the table.

    Args:
        now_ms: the time of the removal in milliseconds.
        data_change: False for a fold, which changes no row of the table.
    """
    fields = {
        "path": file.add["path"],
        "deletionTimestamp": now_ms,
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": file.size,
    }
    names = ("deletionVector", "baseRowId", "defaultRowCommitVersion")
    return {"remove": fields | {name: file.add[name] for name in names if file.add.get(name) is not None}}


def identity(action: Action) -> tuple[str, str]:
    """Return the identity of a logical file in a table: its path and its vector (PROTOCOL.md, "Add File")."""
    vector = action.get("deletionVector")
    if not vector:
        return action["path"], ""
    return action["path"], f"{vector['storageType']}{vector['pathOrInlineDv']}@{offset_of(vector)}"


def offset_of(vector: Mapping[str, Any]) -> str:
    """Return the offset of a vector in its file, as text; empty if the log has none, or null as some writers put it."""
    return "" if vector.get("offset") is None else str(vector["offset"])


def names_of(action: Action) -> list[str]:
    """Return the names of the files that belong to an action: the data file and, if there is one, its vector's file."""
    vector = action.get("deletionVector")
    vector_path = vectors.file_of(vector) if vector else None
    return [unquote(action["path"]), *([vector_path] if vector_path else [])]


@dataclass
class TableState:
    """The state of a table at one version.

    Attributes:
        version: version of the table; -1 before the first commit.
        files: data files, by path as the log writes it.
        transactions: the newest version of each application.
        transaction_times: the time of each application's newest transaction, in milliseconds, if the log has it.
        records: domain metadata, by domain.
    """

    version: int = -1
    protocol: Action = field(default_factory=dict)
    metadata: Action = field(default_factory=dict)
    files: dict[str, DataFile] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    transaction_times: dict[str, int] = field(default_factory=dict)
    records: dict[str, str] = field(default_factory=dict)

    def apply(self, actions: Iterable[Action]) -> None:
        """Apply the actions of one commit. Their order has no meaning; a file that the commit both removes and adds
        (with another vector) is in the table afterwards."""
        actions_ = list(actions)
        for action in actions_:
            if remove := action.get("remove"):
                self.files.pop(remove["path"], None)
        for action in actions_:
            if add := action.get("add"):
                self.files[add["path"]] = data_file(add)
            self._apply_other(action)

    def _apply_other(self, action: Action) -> None:
        if transaction := action.get("txn"):
            self.transactions[transaction["appId"]] = int(transaction["version"])
            if (updated := transaction.get("lastUpdated")) is not None:
                self.transaction_times[transaction["appId"]] = int(updated)
        elif domain := action.get("domainMetadata"):
            if domain.get("removed"):
                self.records.pop(domain["domain"], None)
            else:
                self.records[domain["domain"]] = domain["configuration"]
        elif metadata := action.get("metaData"):
            self.metadata = metadata
        elif protocol := action.get("protocol"):
            self.protocol = protocol

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self.metadata.get("configuration") or {}

    @property
    def vbuckets(self) -> frozenset[int]:
        """The vbuckets of which the files may have rows, as far as they say."""
        bounds = (file.vbuckets for file in self.files.values() if file.vbuckets is not None)
        return frozenset(vb for lowest, highest in set(bounds) for vb in range(lowest, highest + 1))

    @property
    def vectors(self) -> bool:
        """Return True if dead rows are marked in deletion vectors; otherwise their file is written anew without
        them."""
        return READER_FEATURES[0] in (self.protocol.get("writerFeatures") or ()) and self.says(VECTORS)

    @property
    def gives_row_ids(self) -> bool:
        """Return True if each commit gives ids to the rows of its files."""
        # While the feature is being dropped no file may get an id (PROTOCOL.md, "Row Tracking").
        has_feature = row_ids.FEATURE in (self.protocol.get("writerFeatures") or ())
        return has_feature and not self.says(row_ids.SUSPENDED)

    @property
    def id_columns(self) -> IdColumns | None:
        """The columns by which rows keep their ids; None if they need not keep them."""
        return IdColumns.of(self.properties) if self.gives_row_ids and self.says(row_ids.ENABLED) else None

    @property
    def next_row(self) -> int:
        """The first id of a row that was not given out yet."""
        return row_ids.next_row(self.records)

    @property
    def layout(self) -> TableLayout:
        """The places of the table's files."""
        return OF_ICEBERG if FEATURE in (self.protocol.get("writerFeatures") or ()) else OF_DELTA

    def says(self, name: str, *, otherwise: bool = False) -> bool:
        """Return True if a table property is "true", in any case of letters; `otherwise` if the table does not have
        it.
        """
        text = self.properties.get(name)
        return otherwise if text is None else text.casefold() == "true"

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The table's columns, as the log describes them."""
        columns: list[dict[str, Any]] = json.loads(self.metadata["schemaString"])["fields"]
        return columns

    @property
    def id(self) -> str:
        """The table's own id."""
        return str(self.metadata["id"])

    def actions(self) -> Iterator[Action]:
        """Yield the state as actions, as a checkpoint holds them, without removals (`TableLog.removals`)."""
        yield {"protocol": self.protocol}
        yield {"metaData": self.metadata}
        for name, version in self.transactions.items():
            updated = {"lastUpdated": self.transaction_times[name]} if name in self.transaction_times else {}
            yield {"txn": {"appId": name, "version": version} | updated}
        for domain, text in self.records.items():
            yield {"domainMetadata": {"domain": domain, "configuration": text, "removed": False}}
        for file in self.files.values():
            yield {"add": file.add | {"dataChange": False}}


class _PartedError(Exception):
    """The commit before the next one is not the commit that was read."""


class TableLog:
    """The log of one table, followed by one process.

    Args:
        store: the table's place.
        removals: True to keep removals while commits are read; there are many, and following a log needs none.

    Attributes:
        checkpointed: version of the checkpoint that reading began with; -1 if there was none.
        restored: True if somebody restored an older version since a mirror last committed: the rows are older than the
            record, for RESTORE does not change the record.
    """

    def __init__(self, store: TableStore, *, removals: bool = False) -> None:
        self.store: TableStore = store
        self.state: TableState = TableState()
        self._base: list[str] = []
        self._removals: list[Action] | None = [] if removals else None
        self._removed_count = 0
        self.checkpointed: int = -1
        self.restored: bool = False
        self._last: bytes | None = None

    @property
    def exists(self) -> bool:
        """True if the place holds a table, as far as the log was read."""
        return self.state.version >= 0

    def refresh(self, *, sure: bool = False) -> TableState:
        """Read the commits since the last call; return the state.

        Args:
            sure: also check that the log is still the one that was read, even if there is nothing new, and read the log
                anew if the next commits were removed behind a checkpoint meanwhile. Costs reading one file.

        Raises:
            TableAway: the log is not the one that was read.
            UnsupportedTable: the table's protocol has a feature that we do not know.
            CorruptStore: a commit or checkpoint that can't be read, or one that is missing.
        """
        before = self.state.version
        if before < 0:
            self._start()
        following = self._content(self.state.version + 1)
        # Looked at last: what was read before is of this log if it is there now.
        if before >= 0 and (sure or following is not None) and self.look():
            following = None
        while following is not None:
            self._take(following)
            following = self._content(self.state.version + 1)
        # Only the newest state binds us: a feature that was added and dropped again in between demands nothing.
        if self.exists and self.state.version > before:
            check(self.store.root, self.state)
        return self.state

    def look(self) -> bool:
        """Check that the log is the one that was read; return True if it was read anew, because the next commits are
        gone.

        Commits are removed in their order: while the last commit that we read is there, all later ones are there, too.

        Raises:
            TableAway: there is no log here, or another table's, or one that lacks a commit that was read.
        """
        content = self._content(self.state.version)
        if content is not None and _digest(content) == self._last:
            return False
        newest = TableLog(self.store, removals=self._removals is not None)
        try:
            newest.refresh()
        except CorruptStore as error:
            raise TableAway(self.store.root, f"its log is not whole: {error}; bring the table back") from error
        self._check_same(newest, forked=content is not None and self._last is not None)
        if newest.state.version == self.state.version:
            self._last = newest._last  # none, if its commit was removed and only the checkpoint has it
            return False
        self.state, self.checkpointed, self._last = newest.state, newest.checkpointed, newest._last
        self.restored, self._removals = newest.restored, newest._removals
        self._base, self._removed_count = newest._base, newest._removed_count
        return True

    def _check_same(self, newest: TableLog, *, forked: bool) -> None:
        """Check that the log at this place continues the one that was read.

        Args:
            newest: the log at this place, read anew.
            forked: True if the version that was read last is another commit there.

        Raises:
            TableAway: there is no table, another one, or one at an older or different version.
        """
        if not newest.exists:
            raise TableAway(self.store.root, AWAY)
        if newest.state.id != self.state.id:
            change = f"another table lies here by now, {newest.state.id}, not {self.state.id} that was read"
            raise TableAway(self.store.root, f"{change}: it was made anew, or something else is mounted here")
        if forked or newest.state.version < self.state.version:
            change = f"its log had version {self.state.version} and is at version {newest.state.version}"
            how = "that version is another commit by now" if forked else "it was put back to an older state"
            raise TableAway(self.store.root, f"{change}: {how}")

    def removals(self) -> pa.Table:
        """Return all removals of the checkpoint and of the commits after it, as columns, in their order. The log must
        have been created with `removals`."""
        return checkpoints.removals(self.store, self._base, self._removals or ())

    def count_removals(self) -> int:
        """Return the number of these removals."""
        return checkpoints.count_removals(self.store, self._base) + self._removed_count

    def at(self, version: int) -> TableState | None:
        """Return the state at an older version, read anew; None if the log does not go back so far."""
        state = TableState()
        checkpoint = checkpoints.newest(self.store, FOLDER, version)
        if checkpoint is not None:
            state.version, actions, _ = checkpoint
            state.apply(actions)
        while state.version < version:
            actions_then = self._commit_of(state.version + 1)
            if actions_then is None:
                return None
            state.apply(actions_then)
            state.version += 1
        return state

    def since(self, version: int) -> Iterator[Action]:
        """Yield the actions of all commits after `version`, up to the version that `refresh` read."""
        for actions in self.commits(version):
            yield from actions

    def commits(self, version: int) -> Iterator[list[Action]]:
        """Yield the actions of each commit after `version`, up to the version that `refresh` read, a list for each
        commit.
        """
        for number in range(version + 1, self.state.version + 1):
            actions = self._commit_of(number)
            if actions is None:
                raise TableChanged(self.store.root, f"version {number} of the log is gone; the batch is planned anew")
            yield actions

    def commit(self, actions: Sequence[Action], operation: str, metrics: Mapping[str, int] | None = None) -> bool:
        """Commit the actions as the next version; return False, with nothing changed, if another writer was first.

        Raises:
            TableAway: the log is not the one that was read.
            TableChanged: a file that the actions name for the first time is gone.
        """
        # Only a checkpoint has the last version, so there is no commit to compare bytes with; the whole log is looked
        # at before anything goes behind it.
        if self.exists and self._last is None and self.look():
            return False
        version, now = self.state.version + 1, _now_ms()
        information = {
            "timestamp": now,
            "operation": operation,
            "operationParameters": {},
            "operationMetrics": {name: str(value) for name, value in (metrics or {}).items()},
            "engineInfo": ENGINE,
            "txnId": str(uuid.uuid4()),
        } | ({"tags": row_ids.PRESERVED} if self.state.id_columns else {})
        actions = self._with_row_ids(actions, version)
        # Characters as they are: readers by arrow-json take the escapes of every other plane from 2 on, of a column
        # called "𠮷" for example, for other characters, and find no such column in the files.
        lines = [
            json.dumps(action, ensure_ascii=False, separators=(",", ":"))
            for action in ({"commitInfo": information}, *actions)
        ]
        # A half of a pair that a table of before still has in its schema is JSON's escape, as it was.
        content = ("\n".join(lines) + "\n").encode(errors="backslashreplace")
        # As late as possible: until a commit names them, a vacuum of another writer may take the new files for orphans.
        self._check_files(actions)
        if not self._put(version, content):
            return False
        last = self.state.version
        invariant(last == version - 1, "{}: version {} is written behind {}", self.store.root, version, last)
        # Applied only now that the commit is durable: a refused one must leave the state as the log has it.
        self.state.apply(actions)
        self.state.version, self._last = version, _digest(content)
        self._note(actions)
        return True

    def _with_row_ids(self, actions: Sequence[Action], version: int) -> Sequence[Action]:
        """Give ids to the rows of new files. Only here, for a commit that lost the race has to give others."""
        state = self.state
        for action in actions:
            if "protocol" in action:
                state = replace(state, protocol=action["protocol"])
            elif "metaData" in action:
                state = replace(state, metadata=action["metaData"])
        if not state.gives_row_ids:
            return actions
        return row_ids.with_ids(actions, self.state.next_row, version)

    def _put(self, version: int, content: bytes) -> bool:
        """Write a commit under its name, behind the commit that it continues."""
        before = (_name(version - 1), self._check_last) if self.exists else None
        try:
            # A name that is taken may be our own commit's, of which the answer was lost: no two have the same bytes.
            return self.store.create(_name(version), content, before) or self._content(version) == content
        except (_PartedError, FileNotFoundError):
            # The commit before ours is gone or another one. `look` raises if this is another log by now; if not, the
            # log went on, and the caller reads it and tries again.
            self.look()
            return False

    @contextmanager
    def holding(self) -> Iterator[Before]:
        """Yield the `before` argument for `TableStore.output` and `remove`: files are then put or removed in this log
        only, not in another table's log that has taken its place and uses the same names.

        Raises:
            TableAway: the log is another one. TableChanged: the last commit that was read is gone.
        """
        try:
            yield _name(self.state.version), self._check_here
        except (_PartedError, FileNotFoundError) as error:
            self.look()
            raise TableChanged(self.store.root, "its log went on meanwhile; it is read anew") from error

    def _check_here(self, content: bytes | None) -> None:
        if self._last is None:
            self.look()  # only the checkpoint has the version
        else:
            self._check_last(content)

    def _check_last(self, content: bytes | None) -> None:
        if self._last is not None and (content is None or _digest(content) != self._last):
            raise _PartedError

    def _check_files(self, actions: Sequence[Action]) -> None:
        """Check that the files of these `add` actions exist: a table that names a missing file can't be read any more.

        A file may be missing, for example, because it was written while the lake was away.

        Raises:
            TableChanged: a file is gone.
        """
        present = {name for file in self.state.files.values() for name in names_of(file.add)}
        named_paths = {name for action in actions if "add" in action for name in names_of(action["add"])}
        # The files of the table itself are not looked for: thousands of requests a commit. `lake verify` does that.
        for path in sorted(named_paths - present):
            if not self.store.exists(path):
                problem = f"{path} was removed before the batch was committed, by a vacuum or by somebody else"
                raise TableChanged(self.store.root, f"{problem}; the batch is written anew")

    def _start(self) -> None:
        """Begin with the newest checkpoint, or with version 0 if the log still has it."""
        checkpoint = checkpoints.newest(self.store, FOLDER)
        if checkpoint is not None:
            version, actions, self._base = checkpoint
            self.state.apply(actions)
            self.state.version = self.checkpointed = version
            content = self._content(version)
            self._last = None if content is None else _digest(content)
            self.restored = self._was_restored()
        elif (first := self._first()) > 0:
            raise CorruptStore(self.store.full(_name(first)), 0, "the log begins here and no checkpoint is before it")

    def _first(self) -> int:
        names = (file.path.rpartition("/")[2] for file in self.store.list(FOLDER))
        return min((int(name[:20]) for name in names if COMMIT.fullmatch(name)), default=0)

    def _was_restored(self) -> bool:
        """Return True if the newest commit that has a record or a RESTORE is a RESTORE."""
        for version in range(self.state.version, max(-1, self.state.version - RESTORE_BACK_MAX), -1):
            # Commits are removed from the oldest on, so nothing older than this one is left to look at.
            if (actions := self._commit_of(version)) is None:
                return False
            if (restored := _restores(actions)) is not None:
                return restored
        return False

    def _note(self, actions: Sequence[Action]) -> None:
        removals_ = [action["remove"] for action in actions if "remove" in action]
        self._removed_count += len(removals_)
        if self._removals is not None:
            self._removals += removals_
        if (restored := _restores(actions)) is not None:
            self.restored = restored

    def _take(self, content: bytes) -> None:
        actions = self._actions(self.state.version + 1, content)
        self.state.apply(actions)
        self.state.version, self._last = self.state.version + 1, _digest(content)
        self._note(actions)

    def _commit_of(self, version: int) -> list[Action] | None:
        content = self._content(version)
        return None if content is None else self._actions(version, content)

    def _content(self, version: int) -> bytes | None:
        try:
            return self.store.read(_name(version))
        except FileNotFoundError:
            return None

    def _actions(self, version: int, content: bytes) -> list[Action]:
        try:
            # Bytes and not text: `str.splitlines` breaks at U+2028 and others as well, which stand unescaped in the
            # names and values of a commit.
            return [json.loads(line) for line in content.splitlines() if line.strip()]
        except ValueError as error:
            raise CorruptStore(self.store.full(_name(version)), 0, f"not a commit: {error}") from None


def check(place: str, state: TableState) -> None:
    """Check that the table demands no feature of a writer that we do not know.

    Raises:
        UnsupportedTable: it does; the message names the demand.
    """
    protocol = state.protocol
    reader, writer = int(protocol.get("minReaderVersion", 0)), int(protocol.get("minWriterVersion", 0))
    features = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
    supported = {*READER_FEATURES, *WRITER_FEATURES, *TYPE_FEATURES.values(), WIDENING, FEATURE, row_ids.FEATURE}
    unknown_features = sorted(features - supported - HARMLESS)
    needed = {*WRITER_FEATURES} - {*READER_FEATURES}
    if reader not in (READER, READER_PLAIN) or writer != WRITER or not needed <= features:
        text = (
            f"its protocol is reader {reader}, writer {writer}, features {sorted(features)}; this is not a table that"
        )
        raise UnsupportedTable(place, f"{text} a mirror made: mirror into another place")
    if unknown_features:
        text = f"the table feature {', '.join(unknown_features)} is not known to this writer"
        raise UnsupportedTable(place, f"{text}: drop the feature, or mirror into another place")
    bound = [name for name in _BINDING_PROPERTIES if state.says(name)]
    bound += [name for name in state.properties if name.startswith("delta.constraints.")]
    for column in state.fields:
        bound += [f"{name} of column {column['name']}" for name in _BINDING_FIELDS if name in column["metadata"]]
        bound += [f"the column {column['name']}, {reason}" for reason in _why_not(column)]
    if state.metadata.get("partitionColumns"):
        bound.append(f"partitioning by {', '.join(state.metadata['partitionColumns'])}")
    if bound:
        text = f"the table has {', '.join(bound)}, which this writer can't keep"
        raise UnsupportedTable(place, f"{text}: remove it, or mirror into another place")


def _why_not(column: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reasons why our rows can't fill a column that another writer added, each as the end of a sentence."""
    if not column.get("nullable", True):
        yield "which is never null"
    try:
        arrow_type(column["type"])
    except KeyError as error:
        yield f"of type {error.args[0]}"


def creation(
    fields: Sequence[Mapping[str, Any]],
    properties: Mapping[str, str],
    name: str,
    *,
    vectors: bool = True,
    layout: TableLayout = OF_DELTA,
) -> list[Action]:
    """Return the actions that create an empty table; without `vectors`, for readers without deletion vectors."""
    reading = [*(READER_FEATURES if vectors else ())]
    kinds = [column["type"] for column in fields]
    reading += [feature for kind, feature in TYPE_FEATURES.items() if kind in kinds]
    writing = [name for name in WRITER_FEATURES if name not in READER_FEATURES]
    writing += [FEATURE] if layout is OF_ICEBERG else []
    protocol = {
        "minReaderVersion": READER if reading else READER_PLAIN,
        "minWriterVersion": WRITER,
        # A feature that binds readers must stand in both lists (PROTOCOL.md, "Table Features").
        "writerFeatures": [*reading, *writing],
    } | ({"readerFeatures": reading} if reading else {})
    metadata = {
        "id": str(uuid.uuid4()),
        "name": name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_string(fields),
        "partitionColumns": [],
        "configuration": ({VECTORS: "true"} if vectors else {}) | dict(properties),
        "createdTime": _now_ms(),
    }
    return [{"protocol": protocol}, {"metaData": metadata}]


def schema_string(fields: Sequence[Mapping[str, Any]]) -> str:
    """Return columns in the form in which the log writes a schema."""
    return json.dumps({"type": "struct", "fields": list(fields)}, ensure_ascii=False)


def record(domain: str, configuration: Mapping[str, Any]) -> Action:
    """Return the action that stores `configuration` with the table, so that it changes in the same commit."""
    text = json.dumps(configuration, separators=(",", ":"))
    return {"domainMetadata": {"domain": domain, "configuration": text, "removed": False}}


def transaction(application: str, version: int) -> Action:
    """Return the action that records an application's `version` in the table."""
    return {"txn": {"appId": application, "version": version, "lastUpdated": _now_ms()}}


def _restores(actions: Iterable[Action]) -> bool | None:
    """Return True for a commit with a RESTORE and no mirror's record, False for one with a record, None for one with
    neither.
    """
    restores = None
    for action in actions:
        if (action.get("domainMetadata") or {}).get("domain") == DOMAIN:
            return False
        if str((action.get("commitInfo") or {}).get("operation", "")).upper() == "RESTORE":
            restores = True
    return restores


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _name(version: int) -> str:
    return f"{FOLDER}/{version:020d}.json"


def _now_ms() -> int:
    return int(time.time() * 1000)
