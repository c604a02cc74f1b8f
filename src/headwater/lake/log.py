"""The table's log: what Delta's protocol says a table is, version by version.

`_delta_log/<version>.json` holds a commit's actions, one JSON object a line; `<version>.checkpoint.parquet` the state
that all commits up to it amount to. `TableLog.refresh` follows the log by asking for the next version until there is
none, so keeping up costs one look.

Of a table we did not make, everything that a writer must obey is checked by name before anything is written: a
protocol feature, a property or a column we do not know refuses the table. Source: Delta's PROTOCOL.md.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from headwater.errors import CorruptStore, TableChanged, UnsupportedTable
from headwater.lake import checkpoints
from headwater.lake.shape import VARIANT
from headwater.lake.store import TableStore
from headwater.lake.vectors import Descriptor

FOLDER = "_delta_log"
READER, READER_PLAIN, WRITER = 3, 1, 7
"""Versions of the protocol: of a table with deletion vectors, and of one that every reader reads."""
READER_FEATURES = ("deletionVectors",)
WRITER_FEATURES = ("deletionVectors", "domainMetadata")
VARIANT_FEATURE = "variantType"
HARMLESS = frozenset({"appendOnly", "changeDataFeed", "checkConstraints", "generatedColumns", "invariants"})
HARMLESS |= {"timestampNtz", "vacuumProtocolCheck", "identityColumns", "allowColumnDefaults"}
"""Features that bind a writer only where a property or a column makes use of them; that is checked as well."""

_BINDING_PROPERTIES = {"delta.appendOnly": "true", "delta.enableChangeDataFeed": "true"}
_BINDING_FIELDS = ("delta.invariants", "delta.generationExpression", "delta.identity.start", "CURRENT_DEFAULT")

ENGINE = "headwater"
Action = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of one version of the table.

    Attributes:
        add: the log's action.
        rows: rows it holds, dead ones included; None where its writer left no statistics.
        vbuckets: lowest and highest vbucket among them; None where unknown.
    """

    add: Action
    rows: int | None
    vbuckets: tuple[int, int] | None

    @property
    def path(self) -> str:
        """Its path as the file system knows it: the log writes it as a url."""
        return unquote(self.add["path"])

    @property
    def size(self) -> int:
        """The size in bytes."""
        return int(self.add["size"])

    @property
    def vector(self) -> Descriptor | None:
        """Its deletion vector, if it has one."""
        found: Descriptor | None = self.add.get("deletionVector")
        return found

    @property
    def dead(self) -> int:
        """How many of its rows are dead."""
        return int(self.vector["cardinality"]) if self.vector else 0

    def may_hold(self, lowest: int, highest: int) -> bool:
        """Whether rows of vbuckets in this range can be among its own."""
        return self.vbuckets is None or (self.vbuckets[0] <= highest and lowest <= self.vbuckets[1])


def data_file(add: Action) -> DataFile:
    """Read an `add` action."""
    stats = json.loads(add["stats"]) if add.get("stats") else {}
    low, high = ((stats.get(side) or {}).get("vbucket") for side in ("minValues", "maxValues"))
    bounds = (int(low), int(high)) if low is not None and high is not None else None
    return DataFile(add, stats.get("numRecords"), bounds)


def removal(gone: DataFile, now_ms: int, *, data_change: bool = True) -> Action:
    """Return the action that takes a file, as it stands in the table, out of it."""
    removed = {
        "path": gone.add["path"],
        "deletionTimestamp": now_ms,
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": gone.size,
    }
    return {"remove": removed | ({"deletionVector": gone.vector} if gone.vector else {})}


def identity(action: Action) -> tuple[str, str]:
    """Return what makes a logical file unique in a table: its path and its vector (PROTOCOL.md, "Add File")."""
    vector = action.get("deletionVector")
    if not vector:
        return action["path"], ""
    return action["path"], f"{vector['storageType']}{vector['pathOrInlineDv']}@{vector.get('offset', '')}"


@dataclass
class TableState:
    """The state of a table at one version.

    Attributes:
        version: -1 before the first commit.
        files: by path as the log writes it.
        tombstones: removals that are remembered until they expire, by identity.
        transactions: the newest version of each application.
        records: domain metadata, by domain.
    """

    version: int = -1
    protocol: Action = field(default_factory=dict)
    metadata: Action = field(default_factory=dict)
    files: dict[str, DataFile] = field(default_factory=dict)
    tombstones: dict[tuple[str, str], Action] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    records: dict[str, str] = field(default_factory=dict)

    def apply(self, actions: Iterable[Action]) -> None:
        """Take in the actions of one commit. Their order means nothing, but a file that a commit removes and adds
        (with another vector) is there afterwards."""
        kept = list(actions)
        for action in kept:
            if removed := action.get("remove"):
                self.files.pop(removed["path"], None)
                self.tombstones[identity(removed)] = removed
        for action in kept:
            if added := action.get("add"):
                self.files[added["path"]] = data_file(added)
                self.tombstones.pop(identity(added), None)
            self._apply_other(action)

    def _apply_other(self, action: Action) -> None:
        if seen := action.get("txn"):
            self.transactions[seen["appId"]] = int(seen["version"])
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
    def vectors(self) -> bool:
        """Whether dead rows are noted beside their file; else the file is written anew without them."""
        return READER_FEATURES[0] in (self.protocol.get("writerFeatures") or ())

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The table's columns, as the log describes them."""
        found: list[dict[str, Any]] = json.loads(self.metadata["schemaString"])["fields"]
        return found

    @property
    def id(self) -> str:
        """The table's own id."""
        return str(self.metadata["id"])

    def actions(self) -> Iterator[Action]:
        """Yield the state as actions, as a checkpoint holds them."""
        yield {"protocol": self.protocol}
        yield {"metaData": self.metadata}
        for name, version in self.transactions.items():
            yield {"txn": {"appId": name, "version": version}}
        for domain, text in self.records.items():
            yield {"domainMetadata": {"domain": domain, "configuration": text, "removed": False}}
        for file in self.files.values():
            yield {"add": file.add | {"dataChange": False}}
        for removed in self.tombstones.values():
            yield {"remove": removed | {"dataChange": False}}


class TableLog:
    """The log of one table, followed by one process.

    Args:
        store: the table's place.

    Attributes:
        checkpointed: the version of the checkpoint that reading began with; -1 for none.
    """

    def __init__(self, store: TableStore) -> None:
        self.store, self.state = store, TableState()
        self.checkpointed = -1

    @property
    def exists(self) -> bool:
        """Whether the place holds a table, as far as was read."""
        return self.state.version >= 0

    def refresh(self, *, sure: bool = False) -> TableState:
        """Read what was committed since the last look; return the state.

        Args:
            sure: also after such a long sleep that the next commits were removed, a checkpoint having them. Costs a
                look at one file.

        Raises:
            UnsupportedTable: the table's protocol is beyond us.
            CorruptStore: a commit or checkpoint that can't be read, or one that is missing.
        """
        before = self.state.version
        if before < 0:
            self._start()
        while (actions := self._commit_of(self.state.version + 1)) is not None:
            self.state.apply(actions)
            self.state.version += 1
        if sure:
            self._wake()
        if self.exists and self.state.version > before:
            check(self.store.root, self.state)
        return self.state

    def _wake(self) -> bool:
        """Begin anew if the log goes on further than we can follow: commits are removed in their order, so as long as
        the one that we know last is there, so are those after it. Returns whether it was so."""
        if not self.exists or self.store.exists(_name(self.state.version)):
            return False
        newest = TableLog(self.store)
        if newest.refresh().version <= self.state.version:
            return False
        self.state, self.checkpointed = newest.state, newest.checkpointed
        return True

    def at(self, version: int) -> TableState | None:
        """Return the state of an older version, read anew; None where the log does not go back so far."""
        older = TableState()
        found = checkpoints.newest(self.store, FOLDER, version)
        if found is not None:
            older.version, actions = found
            older.apply(actions)
        while older.version < version:
            actions_then = self._commit_of(older.version + 1)
            if actions_then is None:
                return None
            older.apply(actions_then)
            older.version += 1
        return older

    def since(self, version: int) -> Iterator[Action]:
        """Yield the actions of the commits after `version` up to the newest; they must have been refreshed."""
        for actions in self.commits(version):
            yield from actions

    def commits(self, version: int) -> Iterator[list[Action]]:
        """Yield the same commit by commit."""
        for number in range(version + 1, self.state.version + 1):
            actions = self._commit_of(number)
            if actions is None:
                raise TableChanged(self.store.root, f"version {number} of the log is gone; the batch is planned anew")
            yield actions

    def commit(self, actions: Sequence[Action], operation: str, metrics: Mapping[str, int] | None = None) -> bool:
        """Make the actions the next version; return False, having done nothing, if somebody else made it first."""
        if self._wake():
            return False
        version, now = self.state.version + 1, _now_ms()
        told = {
            "timestamp": now,
            "operation": operation,
            "operationParameters": {},
            "operationMetrics": {name: str(value) for name, value in (metrics or {}).items()},
            "engineInfo": ENGINE,
            "txnId": str(uuid.uuid4()),
        }
        # Characters as they are: readers by arrow-json take the escapes of every other plane from 2 on, of a column
        # called "𠮷" for example, for other characters, and find no such column in the files.
        lines = [
            json.dumps(action, ensure_ascii=False, separators=(",", ":")) for action in ({"commitInfo": told}, *actions)
        ]
        if not self.store.create(_name(version), ("\n".join(lines) + "\n").encode()):
            return False
        self.state.apply(actions)
        self.state.version = version
        return True

    def _start(self) -> None:
        """Begin at the newest checkpoint, or at version 0 where the log still begins with it."""
        found = checkpoints.newest(self.store, FOLDER)
        if found is not None:
            version, actions = found
            self.state.apply(actions)
            self.state.version = self.checkpointed = version
        elif (first := self._first()) > 0:
            raise CorruptStore(self.store.full(_name(first)), 0, "the log begins here and no checkpoint is before it")

    def _first(self) -> int:
        names = (listed.path.rpartition("/")[2] for listed in self.store.list(FOLDER))
        return min((int(name[:20]) for name in names if name.endswith(".json") and name[:20].isdigit()), default=0)

    def _commit_of(self, version: int) -> list[Action] | None:
        try:
            content = self.store.read(_name(version))
        except FileNotFoundError:
            return None
        try:
            return [json.loads(line) for line in content.splitlines() if line.strip()]
        except ValueError as error:
            raise CorruptStore(self.store.full(_name(version)), 0, f"not a commit: {error}") from None


def check(place: str, state: TableState) -> None:
    """Refuse a table that asks more of a writer than we know.

    Raises:
        UnsupportedTable: names what it is.
    """
    protocol = state.protocol
    reader, writer = int(protocol.get("minReaderVersion", 0)), int(protocol.get("minWriterVersion", 0))
    asked = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
    unknown = sorted(asked - {*READER_FEATURES, *WRITER_FEATURES, VARIANT_FEATURE} - HARMLESS)
    needed = {*WRITER_FEATURES} - {*READER_FEATURES}
    if reader not in (READER, READER_PLAIN) or writer != WRITER or not needed <= asked:
        told = f"its protocol is reader {reader}, writer {writer}, features {sorted(asked)}; this is not a table that"
        raise UnsupportedTable(place, f"{told} a mirror made: mirror into another place")
    if unknown:
        told = f"the table feature {', '.join(unknown)} is not known to this writer"
        raise UnsupportedTable(place, f"{told}: drop the feature, or mirror into another place")
    bound = [name for name, text in _BINDING_PROPERTIES.items() if state.properties.get(name) == text]
    bound += [name for name in state.properties if name.startswith("delta.constraints.")]
    for column in state.fields:
        bound += [f"{name} of column {column['name']}" for name in _BINDING_FIELDS if name in column["metadata"]]
    if state.metadata.get("partitionColumns"):
        bound.append(f"partitioning by {', '.join(state.metadata['partitionColumns'])}")
    if bound:
        told = f"the table has {', '.join(bound)}, which this writer can't keep"
        raise UnsupportedTable(place, f"{told}: remove it, or mirror into another place")


def creation(
    fields: Sequence[Mapping[str, Any]], properties: Mapping[str, str], name: str, *, vectors: bool = True
) -> list[Action]:
    """Return the actions that make an empty table; without `vectors` one for readers that know of none."""
    reading = [*(READER_FEATURES if vectors else ())]
    reading += [VARIANT_FEATURE] if any(column["type"] == VARIANT for column in fields) else []
    protocol = {
        "minReaderVersion": READER if reading else READER_PLAIN,
        "minWriterVersion": WRITER,
        "writerFeatures": [*reading, *(name for name in WRITER_FEATURES if name not in READER_FEATURES)],
    } | ({"readerFeatures": reading} if reading else {})
    metadata = {
        "id": str(uuid.uuid4()),
        "name": name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_string(fields),
        "partitionColumns": [],
        "configuration": ({"delta.enableDeletionVectors": "true"} if vectors else {}) | dict(properties),
        "createdTime": _now_ms(),
    }
    return [{"protocol": protocol}, {"metaData": metadata}]


def schema_string(fields: Sequence[Mapping[str, Any]]) -> str:
    """Return columns as the log writes a schema."""
    return json.dumps({"type": "struct", "fields": list(fields)}, ensure_ascii=False)


def record(domain: str, configuration: Mapping[str, Any]) -> Action:
    """Return the action that keeps something about the table with the table: it changes in the same commit."""
    text = json.dumps(configuration, separators=(",", ":"))
    return {"domainMetadata": {"domain": domain, "configuration": text, "removed": False}}


def transaction(application: str, version: int) -> Action:
    """Return the action that says: this application's `version` is in the table."""
    return {"txn": {"appId": application, "version": version, "lastUpdated": _now_ms()}}


def _name(version: int) -> str:
    return f"{FOLDER}/{version:020d}.json"


def _now_ms() -> int:
    return int(time.time() * 1000)
