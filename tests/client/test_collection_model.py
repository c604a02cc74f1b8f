"""A manifest that changes under a stream: whatever comes and goes, a reader holds what is there, from anywhere on."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from headwater.client.changes import (
    ChangeFeed,
    CollectionCreated,
    CollectionDropped,
    Deletion,
    Event,
    Mutation,
    ScopeCreated,
    ScopeDropped,
)
from headwater.client.collections import CollectionNames, StreamedCollections
from headwater.client.drainer import Handout
from headwater.client.progress import Positions
from headwater.kernels.columns import Arena
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.drain import Drain
from headwater.protocol.dcp.events import CollectionsChanged
from headwater.protocol.dcp.position import ENDLESS, Position
from headwater.wire import dcp, leb128
from headwater.wire.manifest import EMPTY, CollectionsManifest, EventKind, ManifestEvent

LOG = ((0xA, 0),)
NAMES = ("a", "b", "c")


@dataclass
class Bucket:
    """One vbucket: what was written, in order, and what is there."""

    manifest: CollectionsManifest = EMPTY
    log: list[ManifestEvent | tuple[int, bytes, bool]] = field(default_factory=list)
    documents: dict[tuple[int, bytes], int] = field(default_factory=dict)
    next_id: int = 8

    def becomes(self, manifest: CollectionsManifest) -> None:
        self.log += self.manifest.events_to(manifest)
        self.manifest = manifest
        self.documents = {key: seqno for key, seqno in self.documents.items() if manifest.has(key[0])}

    def do(self, what: str, scope: str, name: str, key: bytes) -> None:
        known = self.manifest.scope(scope)
        there = self.manifest.collection(scope, name)
        if what == "create":
            made = self.manifest if known else self.manifest.with_scope(scope, self.next_id)
            if not there:
                self.becomes(made.with_collection(scope, name, None, self.next_id + 1))
                self.next_id += 2
        elif what == "drop" and there:
            self.becomes(self.manifest.without_collection(scope, name))
        elif what == "drop scope" and known:
            self.becomes(self.manifest.without_scope(scope))
        elif what in ("set", "delete"):
            number = there.id if there else 0
            self.log.append((number, key, what == "set"))
            self.documents.pop((number, key), None)
            if what == "set":
                self.documents[number, key] = len(self.log)

    def shows(self, coverage: Coverage, entry: ManifestEvent | tuple[int, bytes, bool]) -> bool:
        """Whether a stream with this choice is shown an entry of the log."""
        about = entry.collection_id if isinstance(entry, ManifestEvent) else entry[0]
        if coverage.is_whole:
            return True
        if coverage.collections is not None:
            return about in coverage.collections
        scope = entry.scope_id if isinstance(entry, ManifestEvent) else self.scope_of(entry[0])
        return scope == coverage.scope

    def scope_of(self, collection: int) -> int:
        if not collection:
            return 0
        events = [each for each in self.log if isinstance(each, ManifestEvent)]
        return next(event.scope_id for event in events if event.collection_id == collection)

    def frames(self, coverage: Coverage, start: int, cuts: list[int]) -> list[bytes]:
        """The messages of a stream from `start` on, in snapshots that end at these seqnos and with the log."""
        said, last = [], start
        for end in sorted({cut for cut in cuts if start < cut < len(self.log)} | {len(self.log)}):
            if end > last:
                said.append(dcp.SnapshotMarker(vbucket=0, opaque=1, start_seqno=last, end_seqno=end, flags=1).encode())
            for seqno in range(last + 1, end + 1):
                if self.shows(coverage, self.log[seqno - 1]):
                    said.append(frame(seqno, self.log[seqno - 1]))
                elif seqno == end:
                    said.append(dcp.SeqnoAdvanced(vbucket=0, opaque=1, seqno=seqno).encode())
            last = end
        return said


def frame(seqno: int, entry: ManifestEvent | tuple[int, bytes, bool]) -> bytes:
    if isinstance(entry, ManifestEvent):
        return dcp.SystemEvent(
            vbucket=0,
            opaque=1,
            by_seqno=seqno,
            event=entry.kind,
            version=0,
            key=entry.name.encode(),
            manifest_uid=entry.manifest_uid,
            scope_id=entry.scope_id,
            collection_id=entry.collection_id,
        ).encode()
    number, key, is_set = entry
    kind = dcp.Mutation if is_set else dcp.DeletionV2
    named = leb128.join_key(number, key)
    return kind(vbucket=0, opaque=1, by_seqno=seqno, rev_seqno=1, key=named).encode()


@dataclass
class Reader:
    """A drain and its events, fed frame by frame; keeps what a reader of documents would."""

    start: Position
    manifest: CollectionsManifest
    held: dict[tuple[int, bytes], int] = field(default_factory=dict)
    seen: list[tuple[int, object]] = field(default_factory=list)
    places: list[tuple[Position, dict[tuple[int, bytes], int], int]] = field(default_factory=list)

    def read(self, frames: list[bytes]) -> None:
        coverage = self.start.coverage
        assert coverage is not None
        streamed = StreamedCollections(coverage, CollectionNames(self.manifest))
        drain = Drain(
            Arena(value_bytes=4096, with_ids=True),
            "node:1",
            window_bytes=0,
            silence_seconds=None,
            answer_seconds=1.0,
            now=0.0,
            with_ids=True,
        )
        drain.request(self.start, ENDLESS, 0.0, coverage.encode())
        drain.receive(dcp.StreamResponse(opaque=1, failover_log=list(LOG)).encode(), 0.0)
        feed = ChangeFeed({0: self.start})
        for said in [b"", *frames]:
            drain.receive(said, 0.0)
            events, drain.events = drain.events, []
            for _, event in events:
                if isinstance(event, CollectionsChanged):
                    told = event.message
                    name = told.key.decode()
                    streamed.names.see(EventKind(told.event), told.scope_id, told.collection_id, name)
            positions = Positions({}, [], {0: LOG}, coverage)
            for taken in feed.take(Handout(drain.arena.batch(), events, positions, streamed)):
                self._take(taken)
            place = feed.positions()[0]
            if said:
                assert place == drain.position(0)  # events say the same as the kernels
            self.places.append((place, dict(self.held), len(self.seen)))

    def _take(self, event: Event) -> None:
        match event:
            case Mutation():
                self.held[event.collection_id, event.key] = event.seqno
                self.seen.append((event.seqno, (event.collection_id, event.key)))
            case Deletion():
                self.held.pop((event.collection_id, event.key), None)
                self.seen.append((event.seqno, (event.collection_id, event.key)))
            case CollectionDropped():
                self.held = {key: seqno for key, seqno in self.held.items() if key[0] != event.collection_id}
                self.seen.append((event.seqno, ("drop", event.collection_id)))
            case CollectionCreated():
                self.seen.append((event.seqno, (event.scope, event.collection, event.collection_id)))
            case ScopeCreated() | ScopeDropped():
                self.seen.append((event.seqno, (type(event), event.scope_id)))


steps = st.tuples(
    st.sampled_from(["create", "set", "set", "set", "delete", "drop", "drop scope"]),
    st.sampled_from(["shop", "sea"]),
    st.sampled_from(NAMES),
    st.sampled_from([b"k", b"l", b"\x08k"]),
)


@given(
    done=st.lists(steps, min_size=1, max_size=25),
    cuts=st.lists(st.integers(1, 40), max_size=5),
    choice=st.sampled_from(["whole", "scope", "collections"]),
    pick=st.integers(0, 10),
)
def test_a_reader_holds_what_is_there_and_goes_on_from_any_position(
    done: list[tuple[str, str, str, bytes]], cuts: list[int], choice: str, pick: int
) -> None:
    bucket = Bucket()
    for step in done:
        bucket.do(*step)
    events = [each for each in bucket.log if isinstance(each, ManifestEvent)]
    scopes = sorted({event.scope_id for event in events}) or [0]
    ids = sorted({event.collection_id for event in events if event.collection_id is not None}) or [0]
    coverage = {
        "whole": Coverage(),
        "scope": Coverage(scope=scopes[pick % len(scopes)]),
        "collections": Coverage(collections=tuple(sorted({0, ids[pick % len(ids)]}))),
    }[choice]
    wanted = {
        (number, key): seqno for (number, key), seqno in bucket.documents.items()
        if bucket.shows(coverage, (number, key, True))
    }  # fmt: skip
    reader = Reader(Position(0, coverage=coverage), EMPTY)
    reader.read(bucket.frames(coverage, 0, cuts))
    assert reader.held == wanted
    for place, held, taken in reader.places:
        assert Position.from_json(place.to_json()) == place
        again = Reader(place, bucket.manifest, dict(held))
        again.read(bucket.frames(coverage, place.seqno, cuts))
        assert again.held == wanted
        assert [seqno for seqno, _ in again.seen] == [seqno for seqno, _ in reader.seen[taken:]]
