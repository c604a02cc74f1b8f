"""Events of a connection on which streams are consumed, by a client (`Drain`) or by a node (`Consumer`).

A client's drain reports the outcome of its streams, each event with the number of the row that it came before, and the
rows apart. A node's consumer also asks its owner for decisions; `Event` is the union of all. Source: dcp 2, 9, 14.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headwater.protocol.dcp.answers import SystemNews
from headwater.protocol.dcp.consumer_stream import ConsumerStream
from headwater.protocol.dcp.position import FailoverLog
from headwater.protocol.dcp.producer_events import NotDcp
from headwater.protocol.end import PeerGone
from headwater.wire.dcp import Abort, Commit, Prepare, SystemEvent
from headwater.wire.header import Frame
from headwater.wire.json_text import context_of
from headwater.wire.manifest import ManifestEvent
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An event of one stream."""

    stream: ConsumerStream

    @property
    def vbucket(self) -> int:
        """The stream's vbucket."""
        return self.stream.vbucket


@dataclass(frozen=True, slots=True)
class Opened(StreamEvent):
    """The producer accepted the request; the vbucket has this failover log from here on."""

    failover_log: FailoverLog


@dataclass(frozen=True, slots=True)
class Refused(StreamEvent):
    """The stream could not be opened: `status` is the producer's, or this end's.

    Attributes:
        body: the producer's explanation: JSON with a context, a cluster map with NOT_MY_VBUCKET, or text.
    """

    status: int
    body: bytes = b""

    @property
    def said(self) -> str:
        """The text in the body that is meant for people."""
        return context_of(self.body)


@dataclass(frozen=True, slots=True)
class RollbackNeeded(StreamEvent):
    """The producer does not share the changes above `seqno`: undo them, then send the request again.

    Attributes:
        reason: reason of the rollback, for people.
    """

    seqno: int
    reason: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Marked(StreamEvent):
    """A snapshot begins.

    Attributes:
        start_seqno, end_seqno, flags: as announced.
        purge_seqno: the snapshot lacks purged tombstones up to this seqno; 0 if the producer sent none.
        deleted_rev: the highest revision of these tombstones; 0 if unknown.
    """

    start_seqno: int
    end_seqno: int
    flags: int
    purge_seqno: int = 0
    deleted_rev: int = 0


@dataclass(frozen=True, slots=True)
class DeletionsMissed(StreamEvent):
    """The consumer holds everything up to `seqno`, but the producer has purged deletions between `seqno` and
    `purge_seqno` that it never sent. The stream is closed; its later changes do not count.
    """

    seqno: int
    purge_seqno: int


@dataclass(frozen=True, slots=True)
class Boundary(StreamEvent):
    """UPR: the changes received so far are a whole snapshot (dcp 14).

    Attributes:
        goes_on: True if a marker began the next snapshot, whose end is unknown; False if the stream ended.
    """

    goes_on: bool


@dataclass(frozen=True, slots=True)
class Advanced(StreamEvent):
    """The stream has passed a seqno without a change for this consumer (of another collection, or of a durable write).

    Attributes:
        snapshot: start and end of the snapshot that contains the seqno; (0, 0) if the receiver does not record it.
    """

    seqno: int
    snapshot: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class CollectionsChanged(StreamEvent):
    """A collection or scope was created or dropped, by the event `message` (dcp 2.16); `snapshot` as in Advanced.
    `history`: True if readers of every version get the old ones of a created collection; None if the event does not
    report it.
    """

    message: SystemEvent
    snapshot: tuple[int, int] = (0, 0)
    history: bool | None = None

    @property
    def seqno(self) -> int:
        """The seqno of the event."""
        return self.message.by_seqno


@dataclass(frozen=True, slots=True)
class CollectionsTold(StreamEvent):
    """A system event that only `news` can express: a modified collection, an unknown event; `snapshot` as in
    Advanced.
    """

    news: SystemNews
    snapshot: tuple[int, int] = (0, 0)

    @property
    def seqno(self) -> int:
        """The seqno of the event."""
        return self.news.by_seqno


@dataclass(frozen=True, slots=True)
class Vanished(StreamEvent):
    """A collection is missing in the manifest: it was dropped, but the stream broke off before that event."""

    collection_id: int
    manifest_uid: int


@dataclass(frozen=True, slots=True)
class Ended(StreamEvent):
    """The stream is over.

    Attributes:
        reason: the producer's EndReason, or an unknown number; None if this end closed the stream.
    """

    reason: int | None


@dataclass(frozen=True, slots=True)
class Rows:
    """Changes: one row each, in the columns that docs/howto/read-changes.md names."""

    records: pa.RecordBatch


# --- of a node's consumer alone -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ManifestChanged(StreamEvent):
    """A collection or scope was created, modified or dropped: `event`, at `seqno`."""

    seqno: int
    event: ManifestEvent


@dataclass(frozen=True, slots=True)
class StreamWanted:
    """A mover requests a stream; answer with `Consumer.add` or `Consumer.refuse_stream`."""

    vbucket: int
    flags: int
    frame: Frame


@dataclass(frozen=True, slots=True)
class PositionNeeded(StreamEvent):
    """A stream request is due: call `Consumer.ask` with the vbucket's position, or `Consumer.close` to abandon it."""


@dataclass(frozen=True, slots=True)
class Changed(StreamEvent):
    """A valid change that the kernel did not apply: apply it."""

    frame: Frame
    seqno: int


@dataclass(frozen=True, slots=True)
class DurabilityChanged(StreamEvent):
    """A durable write was prepared, committed or aborted; `message` says which (dcp 2.17)."""

    message: Prepare | Commit | Abort
    frame: Frame
    seqno: int


@dataclass(frozen=True, slots=True)
class Flushed(StreamEvent):
    """UPR: the producer dropped all data of the vbucket."""


@dataclass(frozen=True, slots=True)
class StateWanted(StreamEvent):
    """The producer sets the vbucket's state: apply it, then `Consumer.answer_state`."""

    state: State
    frame: Frame


Event = StreamEvent | StreamWanted | NotDcp | PeerGone
