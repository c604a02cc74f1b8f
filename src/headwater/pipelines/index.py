"""A full-text index of a bucket's documents: in one SQLite file, or in OpenSearch.

    node -> task: text of each document -> driver: rows and record in one transaction       (SQLite)
    node -> task: text, `_bulk` with versions -> driver: record, after the server has it     (OpenSearch)

A batch is planned from the index's own record, and the record moves with the rows. Vbuckets that a failover took back
are read from their beginning and replaced whole: documents of the lost branch are removed, and those that it had
overwritten or deleted come back. A server can't take part in our transaction, so its batch is noted before the tasks
begin, and must be finished before another is planned; and documents that are read anew get a higher generation
(opensearch.py).

An index of collections holds the documents of existing collections: when one is dropped, all of its documents are
removed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.ipc

from headwater.errors import TableChanged
from headwater.failpoints import failpoint
from headwater.pipelines.attempts import patience
from headwater.pipelines.fulltext import (
    BY_COLLECTION,
    STAGED,
    STAGED_OF_COLLECTIONS,
    FullText,
    apply,
    key_text,
    remove_collections,
    remove_staged,
    replace_vbuckets,
    staged,
)
from headwater.pipelines.job import follow_into
from headwater.pipelines.jobs import IndexProgress, TextIndex
from headwater.pipelines.ledger import LedgerRecord, folder
from headwater.pipelines.opensearch import (
    SERVER_SECONDS,
    BulkCounts,
    Item,
    SearchClient,
    SearchServer,
    identifier,
    version,
)
from headwater.pipelines.quarantine import NOBODYS
from headwater.pipelines.table import BEGINNING
from headwater.pipelines.tasks import advanced, reached_rows, whole
from headwater.pipelines.texts import TextRules
from headwater.protocol.dcp.position import Position
from headwater.spark.offsets import Offset
from headwater.spark.planner import Range, pack, ranges
from headwater.spark.reader import further, read
from headwater.spark.settings import SourceSettings

NAMES = ("vbucket", "seqno", "event", "key", "value", "expiry")
OF_COLLECTIONS = ("collection_id", "scope", "collection")
_FOLDER = "_staged"

log: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class IndexTask:
    """The work of one task; travels to it pickled.

    Args:
        place: the index's folder.
        settings: the settings of the source, with the nodes that the planner knows.
        parts: ranges to read.
        rules: the rules by which documents become text.
        server: the server that gets the documents; None to leave them in a file.
        generations: the generation of each vbucket in `parts`, for the server.
        index: the id of the server's index; None without one.
    """

    place: str
    settings: SourceSettings
    parts: tuple[Range, ...]
    rules: TextRules
    server: SearchServer | None
    generations: Mapping[int, int]
    index: str | None

    def answer(self) -> bytes:
        """Read changes, convert them to text, and write the rows to a file or to the server; return the result as
        JSON.
        """
        unread_vbuckets: set[int] = set()
        dropped_ids: set[int] = set()
        # What a server has it has at once: it must be no further than the batch that was noted.
        positions = further(self.settings) if self.server is None else None
        path = Path(self.place) / _FOLDER / f"{uuid4().hex}.arrow"
        path.parent.mkdir(parents=True, exist_ok=True)
        counts = dict.fromkeys(("indexed", "removed", "aside", "behind"), 0)
        schema = STAGED_OF_COLLECTIONS if self.settings.chooses else STAGED
        with pa.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, schema) as writer:
            for rows in self._rows(unread_vbuckets, dropped_ids, positions, counts):
                writer.write_batch(pa.RecordBatch.from_pylist(rows, schema))
        failpoint("index.read" if self.server is None else "index.sent")
        replaced = [part.vbucket for part in self.parts if part.rollback]
        result = {"path": str(path), "unread": sorted(unread_vbuckets), "replaced": replaced, "counts": counts}
        result |= {"dropped": sorted(dropped_ids), "reached": reached_rows(positions)}
        return json.dumps(result).encode()

    @property
    def _names(self) -> tuple[str, ...]:
        return (*NAMES, *OF_COLLECTIONS) if self.settings.chooses else NAMES

    def _rows(
        self,
        unread_vbuckets: set[int],
        dropped_ids: set[int],
        positions: dict[int, tuple[int, int]] | None,
        counts: dict[str, int],
    ) -> Iterator[list[dict[str, Any]]]:
        parts = [whole(part) for part in self.parts]
        batches = read(
            self.settings, self._names, parts, unread=unread_vbuckets, dropped=dropped_ids, reached=positions
        )
        texts = (self._texts(batch) for batch in batches)
        for rows in texts if self.server is None else self._sent_rows(self.server, texts, counts):
            counts["aside"] += sum(row["aside"] is not None for row in rows)
            if self.server is None:
                counts["indexed"] += sum(row["text"] is not None for row in rows)
                counts["removed"] += sum(row["deleted"] for row in rows)
            yield rows

    def _texts(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        """Return the newest row of each key in a batch."""
        names = self._names
        columns = [batch.column(name).to_pylist() for name in names]
        newest: dict[tuple[int, bytes], dict[str, Any]] = {}
        for values in zip(*columns, strict=True):
            row = dict(zip(names, values, strict=True))
            value, row["deleted"] = row.pop("value"), row.pop("event") != "mutation"
            text, problem = ("", "") if row["deleted"] else self.rules.read(value or b"")
            row |= {"text": None if row["deleted"] or problem else text, "aside": problem or None}
            newest[row.get("collection_id", 0), row["key"]] = row
        # A collection without a name came and went before anybody could ask for it.
        return [row for row in newest.values() if row.get("scope", "") is not None]

    def _sent_rows(
        self, server: SearchServer, texts: Iterable[list[dict[str, Any]]], counts: dict[str, int]
    ) -> Iterator[list[dict[str, Any]]]:
        """Send rows to the server; yield all rows without their text, with the server's reason where it refused one.

        The earlier version of a refused document is deleted at the server, and documents of lost branches are removed.
        """
        with closing(SearchClient(server)) as client:
            client.check(self.index)
            for rows in texts:
                counts_ = client.bulk(map(self._item, rows))
                # What the server refuses must not be found as it was before.
                refused_items = (item.before() for item in map(self._item, rows) if item.name in counts_.refused)
                self._count(counts_, counts)
                client.bulk(refused_items)
                for row in rows:
                    row["aside"], row["text"] = counts_.refused.get(_name(row), row["aside"]), None
                yield rows
            # Only when the vbucket was sent to its end: what is still of an older generation then is not in the new
            # history.
            for part in self.parts:
                if part.rollback:
                    counts["removed"] += client.remove_older(part.vbucket, self.generations[part.vbucket])

    def _item(self, row: Mapping[str, Any]) -> Item:
        generation = self.generations.get(row["vbucket"], 0)
        document = None
        if row["text"] is not None:
            item = {
                "key": key_text(row["key"]),
                "name": key_text(row["key"]),
                "body": row["text"],
                "generation": generation,
            }
            document = item | {
                name: row[name] for name in ("vbucket", "seqno", "expiry", *OF_COLLECTIONS) if name in row
            }
        return Item(row["key"], version(generation, row["seqno"]), document, row.get("collection_id"))

    @staticmethod
    def _count(result: BulkCounts, counts: dict[str, int]) -> None:
        counts["indexed"] += result.stored
        counts["removed"] += result.deleted
        counts["behind"] += result.behind


def _next_generations(before: Mapping[int, int], parts: Sequence[Range]) -> dict[int, int]:
    """Return the generations of all vbuckets in a batch.

    A vbucket gets a new one each time that it is read anew. One that is read for the first time gets the highest: in a
    bucket that was made anew with more vbuckets it may have keys that the server knows from another vbucket, under
    higher seqnos.

    Args:
        before: the generations of the batches before.
        parts: the ranges of the batch.
    """
    generations = {**before, **{part.vbucket: before.get(part.vbucket, 0) + 1 for part in parts if part.rollback}}
    highest = max(generations.values(), default=0)
    first_reads = [part.vbucket for part in parts if not part.start_seqno and not part.rollback and highest]
    return generations | dict.fromkeys(first_reads, highest)


def _name(row: Mapping[str, Any]) -> str:
    return identifier(row["key"], row.get("collection_id"))


@dataclass(frozen=True)
class IndexAnswer:
    """The result of a task.

    Attributes:
        path: the file with the task's rows.
        unread: vbuckets that could not be read as planned.
        replaced: vbuckets whose rows these replace.
        counts: documents by result.
        dropped: ids of dropped collections.
        reached: (vbucket, vb uuid, seqno) of vbuckets that were read further than planned.
    """

    path: str
    unread: list[int]
    replaced: list[int]
    counts: dict[str, int]
    dropped: list[int]
    reached: list[list[int]]


@dataclass(frozen=True)
class IndexOpening:
    """An index given by its place; see `IndexSink`."""

    place: str
    bucket: str
    rules: TextRules
    server: SearchServer | None = None

    def open(self) -> IndexSink:
        """Return the index, opened with its own options."""
        return IndexSink(self.place, self.bucket, self.rules, self.server)


class IndexSink:
    """An index as the engines update it.

    Args:
        place: the folder of the index.
        bucket: the bucket of the documents.
        rules: the rules by which documents become text.
        server: the server that gets the documents; None for the folder's own file.
        tokenizer: the tokenizer of a new index; None for that of an existing one.
        collections: the choice of an index of collections, as text; None for the default one alone.

    Attributes:
        removed: the number of documents that the last batch removed because their collections were dropped.

    Raises:
        LedgerError, OptionError: as `FullText`.
    """

    def __init__(
        self,
        place: str | Path,
        bucket: str,
        rules: TextRules,
        server: SearchServer | None = None,
        tokenizer: str | None = None,
        collections: str | None = None,
    ) -> None:
        self.rules: TextRules = rules
        self.server: SearchServer | None = server
        self.bucket: str = bucket
        shape: dict[str, Any] | None = None
        if tokenizer is not None:
            shape = {"fields": list(rules.fields), "others": rules.others, "tokenizer": tokenizer}
            shape |= {"opensearch": server.url if server else None}
            shape |= {} if collections is None else {BY_COLLECTION: collections}
        self._index = FullText(place, bucket, shape, BEGINNING)
        self._ledger = self._index.ledger
        self.removed: int = 0

    @property
    def place(self) -> str:
        """The index's folder."""
        return self._index.place

    def opening(self) -> IndexOpening:
        """Return the opening by which another process opens the same index."""
        return IndexOpening(self.place, self.bucket, self.rules, self.server)

    def refresh(self) -> LedgerRecord:
        """Return the index's record."""
        return self._ledger.record

    def begun(self) -> dict[str, Any] | None:
        """Return the end of a batch that was begun and not committed, of which the server may have a part; None for
        none.
        """
        return self._ledger.begun

    def tasks(self, end: Mapping[str, Any], settings: SourceSettings, count: int) -> list[IndexTask]:
        """Return the tasks of the batch that ends at `end`.

        With a server, the batch is noted first, and a vbucket gets a new generation each time that it is read anew:
        documents of an earlier attempt may belong to a lost branch by now.
        """
        parts = ranges(Offset.from_json(self.refresh().end), Offset.from_json(end))
        generations: dict[int, int] = {}
        index: str | None = None
        if self.server is not None:
            earlier = {int(vb): number for vb, number in self._ledger.notes.get("generations", {}).items()}
            generations = _next_generations(earlier, parts)
            index = self._claim_index(self.server)
            self._ledger.begin(
                end, {"generations": {str(vb): generations[vb] for vb in sorted(generations)}, "index": index}
            )
        return [
            IndexTask(
                self.place,
                settings,
                tuple(group),
                self.rules,
                self.server,
                {part.vbucket: generations.get(part.vbucket, 0) for part in group},
                index,
            )
            for group in pack(parts, count)
        ]

    def read(self, answer: bytes) -> IndexAnswer:
        """Read a task's answer."""
        return IndexAnswer(**json.loads(answer))

    def commit(
        self,
        after: str,
        end: Mapping[str, Any],
        answers: Sequence[IndexAnswer],
        transaction: tuple[str, int] | None = None,
    ) -> LedgerRecord:
        """Add a batch to the index: rows and record in one transaction.

        Raises:
            TableChanged: the batch was planned from another record; or, without a server, a node's history has changed
                since the batch was planned. With a server those vbuckets are read anew in the next batch.
        """
        if self.server is None and any(answer.unread for answer in answers):
            raise TableChanged(self.place, "vbuckets have another history than the batch was planned for")
        dropped_ids = sorted({number for answer in answers for number in answer.dropped})
        self._check_index()
        self.removed = self._removed_there(dropped_ids)
        end_reached = advanced(end, [place for answer in answers for place in answer.reached])
        # A node refuses a range also where it purged deletions in it since: the next batch reads those vbuckets anew.
        end_reached = _offset_to_read_anew(
            end_reached, {vb for answer in answers for vb in answer.unread}, self.refresh().end
        )
        with self._ledger.advance(after, end_reached) as database:
            for answer in answers:
                replace_vbuckets(database, answer.replaced)
                for rows in staged(answer.path):
                    apply(database, rows)
            self.removed += remove_collections(database, dropped_ids)
        remove_staged([answer.path for answer in answers])
        return self.refresh()

    def count(self, progress: IndexProgress, answers: Sequence[IndexAnswer]) -> None:
        """Add the documents that the last batch added and removed to the progress."""
        progress.removed += self.removed
        for answer in answers:
            progress.rollbacks += len(answer.replaced)
            for name, number in answer.counts.items():
                setattr(progress, name, getattr(progress, name) + number)

    def _claim_index(self, server: SearchServer) -> str:
        """Return the id of the server's index; create the index if no document was ever sent to it."""
        recorded = self._ledger.notes.get("index")
        with closing(SearchClient(server)) as client:
            if recorded is None:
                state = client.prepare(self.refresh().batch, is_begun=self.begun() is not None)
            else:
                state = client.check(recorded)
            client.keep_deletions()
            return state

    def _check_index(self) -> None:
        """Check that the server's index is the one that got all earlier batches. Errors as `SearchClient.check`."""
        if self.server is not None:
            with closing(SearchClient(self.server)) as client:
                client.check(self._ledger.notes.get("index"))

    def _removed_there(self, dropped_ids: Sequence[int]) -> int:
        """Remove the documents of dropped collections from the server; return their number.

        It runs before the record moves, so it may be repeated.
        """
        if self.server is None or not dropped_ids:
            return 0
        with closing(SearchClient(self.server)) as client:
            return sum(map(client.remove_collection, dropped_ids))

    def level(self) -> None:
        """Schedule vbuckets to be read anew of which the server has newer documents than this folder knows, as after
        the folder was restored to an older state. The server would refuse documents of a lower generation, and keep
        those of a lost branch.

        Remove documents of older generations as well, which a late task of a lost branch sent after the others were
        removed.

        Raises:
            SearchRefused, ConnectionLost: as `SearchClient.check`.
        """
        notes, record, begun_end = self._ledger.notes, self.refresh(), self.begun()
        if self.server is None or (index := notes.get("index")) is None:
            return
        with closing(SearchClient(self.server)) as client:
            client.check(index)
            generations_ = {int(vb): number for vb, number in notes.get("generations", {}).items()}
            if begun_end is None:  # else documents of the generation before are replaced when the batch is done again
                for vb, number in client.oldest().items():
                    if number < generations_.get(vb, 0):
                        client.remove_older(vb, generations_[vb])
            reach = client.reach()
        record_offset, sent_offset = Offset.from_json(record.end), Offset.from_json(begun_end or record.end)
        tops = {vb: max(record_offset.position(vb).seqno, sent_offset.position(vb).seqno) for vb in reach}
        ahead = {vb for vb, (number, seqno) in reach.items() if number > generations_.get(vb, 0) or seqno > tops[vb]}
        if not ahead:
            return
        log.warning("%s: it knows less than its index has: %d vbuckets are read anew", self.place, len(ahead))
        # The batch that was begun is none any more, so what the server may have of it is replaced as well.
        ahead |= {part.vbucket for part in ranges(record_offset, sent_offset)}
        generations_ |= {vb: max(reach[vb][0], generations_.get(vb, 0)) for vb in ahead & reach.keys()}
        places = {vb: _nobodys(record_offset.position(vb), reach.get(vb, (0, 0))[1]) for vb in ahead}
        end = replace(record_offset, positions={**record_offset.positions, **places}, rollbacks=frozenset(), losses={})
        notes_ = notes | {"generations": {str(vb): generations_[vb] for vb in sorted(generations_)}}
        with self._ledger.advance(record.digest, end.to_json(), notes_):
            pass

    def prepared(self) -> IndexSink:
        """Prepare the index for the first batch of a run, and return it: remove the files of dead tasks, and call
        `level`.
        """
        remove_staged([str(path) for path in (Path(self.place) / _FOLDER).glob("*.arrow")])
        self.level()
        return self

    def close(self) -> None:
        """Close the file."""
        self._index.close()


def _offset_to_read_anew(
    end: Mapping[str, Any], vbuckets: Iterable[int], before: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return an offset in which some vbuckets are on a branch that no node has, so that they are read anew and
    replaced.

    Without their changes the batch is complete only until the time of the offset `before` it.
    """
    offset = Offset.from_json(end)
    places = {vb: _nobodys(offset.position(vb), 0) for vb in vbuckets}
    if not places:
        return end
    until = Offset.from_json(before).complete_until
    return replace(offset, positions={**offset.positions, **places}, complete_until=until).to_json()


def _nobodys(place: Position, seqno: int) -> Position:
    """Return a position on a branch that no node has, at this seqno at least, so that the vbucket is read anew and
    replaced.
    """
    end_seqno = max(place.seqno, seqno, 1)
    return replace(place, vb_uuid=NOBODYS, seqno=end_seqno, snapshot_start=0, snapshot_end=end_seqno)


def work(job: TextIndex) -> IndexProgress:
    """Keep a full-text index of a bucket's documents, until `job.stop` returns True; return the last progress.

    The folder is on a disk that all workers see. With chosen collections, the documents of a dropped one are removed.

    Raises:
        LedgerError: the folder has another index, or this Python no FTS5.
        SearchRefused: the server refuses documents or its index.
        OptionError: an option is wrong.
        HeadwaterError: a failure that does not pass; the next run continues from the index's record.
    """
    place, rules, choice = folder(job.to), TextRules(tuple(job.fields), job.others), _choice_text(job.source_options())
    server = None
    if job.opensearch is not None:
        seconds = min(SERVER_SECONDS, patience(job.retry_seconds, once=job.once))
        login = job.opensearch_user, job.opensearch_password
        server = SearchServer(job.opensearch, *login, seconds, by_collection=choice is not None)
    return follow_into(job, lambda: IndexSink(place, job.bucket, rules, server, job.tokenizer, choice).prepared())


def _choice_text(reading: Mapping[str, str]) -> str | None:
    """Return the choice of collections as the text that an index keeps; None without a choice."""
    if reading.get("scope") is not None:
        return f"all of scope {reading['scope']}"
    names = reading.get("collections")
    return None if names is None else ",".join(sorted({name.strip() for name in names.split(",")}))
