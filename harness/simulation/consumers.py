"""A client of simulated nodes that drains their changes, remembers them, and rolls back when a node demands it.

The protocol is that of the real client (protocol/dcp/drain.py); it runs on the world's own loop, which no crash ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.simulation.histories import Broken
from harness.simulation.lines import Line
from headwater.errors import HeadwaterError, ProtocolError, StatusError
from headwater.kernels.columns import Arena
from headwater.protocol.dcp.consumer_stream import Phase
from headwater.protocol.dcp.drain import Drain
from headwater.protocol.dcp.events import Ended, Marked, Opened, Refused, RollbackNeeded, StreamEvent
from headwater.protocol.dcp.position import ENDLESS, Position, safe_point
from headwater.protocol.handshake import Conversation, Login, Opening, expect, greet, open_producer
from headwater.wire.dcp import OpenFlag
from headwater.wire.features import Feature
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode

if TYPE_CHECKING:
    from harness.simulation.scheduler import SimLoop
    from harness.simulation.sockets import Network

NOOP_SECONDS = 20
HANDSHAKE_SECONDS = 10.0
WINDOW_BYTES = 2000


@dataclass(frozen=True, slots=True)
class Seen:
    """A change as a consumer received it; value None for a deletion."""

    vbucket: int
    seqno: int
    key: bytes
    value: bytes | None
    cas: int
    rev_seqno: int
    flags: int
    expiry: int


class Consumer:
    """A consumer that drains vbuckets of one node at a time, remembers its changes and position, and rolls back on
    demand.

    It keeps every position at a consistent state, so that it can return to the newest at or below a rollback's seqno
    (protocol/position.safe_point).

    Attributes:
        told: the changes it holds, by vbucket, in seqno order.
        saved: the positions it can return to; the last is its present one.
        on_seen: called with each change and the failover log of its stream.
        rollbacks: the number of rollbacks. error: why the last connection ended.
    """

    def __init__(
        self, network: Network, loop: SimLoop, name: str, vbuckets: Iterable[int], *, bucket: str = ""
    ) -> None:
        self.name = name
        self._bucket = bucket
        self.told: dict[int, list[Seen]] = {vb: [] for vb in vbuckets}
        self.saved: dict[int, list[Position]] = {vb: [Position.beginning(vb)] for vb in self.told}
        self.on_seen: Callable[[Consumer, Seen, Position], None] = lambda consumer, seen, position: None
        self.rollbacks = 0
        self.error = ""
        self.target = ""
        self._loop = loop
        self._line = Line(network, loop, received=self._received, lost=self.disconnect)
        self._arena = Arena(value_bytes=1 << 16)
        self._handshake: Conversation[object] | None = None
        self._asked: Frame | None = None
        self._drain: Drain | None = None
        self._data = bytearray()
        self._frames = FrameBuffer()
        self._called_at = 0.0

    @property
    def is_connected(self) -> bool:
        """True if a connection is open."""
        return self._line.is_open

    def position(self, vb: int) -> Position:
        """Return the present position in a vbucket."""
        return self.saved[vb][-1]

    def connect(self, target: str) -> bool:
        """Close the connection to the present node, and drain this one; return False if it does not listen."""
        self.disconnect()
        if not self._line.connect(target):
            return False
        self.target, self._data, self._frames = target, bytearray(), FrameBuffer()
        self._handshake, self._called_at = self._open(), self._loop.time()
        self._converse(None)
        return True

    def disconnect(self, why: str = "") -> None:
        """Close the connection; unread bytes are lost."""
        self._line.close()
        self._drain = None
        self.error = why or self.error

    def pause(self) -> None:
        """Stop reading for now."""
        self._line.pause()

    def resume(self) -> None:
        """Continue reading."""
        self._line.resume()

    def idle_vbuckets(self) -> list[int]:
        """Return the vbuckets without a stream, while connected."""
        if self._drain is None:
            return []
        streams = self._drain.streams
        return [vb for vb in self.told if vb not in streams or streams[vb].phase is Phase.ENDED]

    def streams(self, vb: int) -> bool:
        """Return True if its node has accepted to stream a vbucket."""
        return self._drain is not None and vb in self._drain.streams and self._drain.streams[vb].phase is Phase.OPEN

    def tick(self) -> None:
        """Check the deadline: close the connection to a node that has been silent for too long."""
        if self._drain is None:
            if self._loop.time() > self._called_at + HANDSHAKE_SECONDS:
                self.disconnect("its node does not answer")
        else:
            gone = self._drain.tick(self._loop.time())
            if gone:
                self.disconnect(f"its node {gone[0]}")
            else:
                self._flush()

    def ask(self, vbuckets: Iterable[int]) -> None:
        """Request the streams of vbuckets from their present positions."""
        if self._drain is not None:
            for vb in vbuckets:
                self._drain.request(self.position(vb), ENDLESS, self._loop.time())
            self._flush()

    # --- inside -----------------------------------------------------------------------------------------------------

    def _open(self) -> Conversation[object]:
        features = (Feature.XERROR, Feature.SNAPPY, Feature.JSON, Feature.SELECT_BUCKET)
        yield from greet(Login(agent="model", bucket=self._bucket, features=features))
        controls = (("enable_noop", "true"), ("set_noop_interval", str(NOOP_SECONDS)))
        window = (("connection_buffer_size", str(WINDOW_BYTES)), ("enable_expiry_opcode", "true"))
        flags = int(OpenFlag.PRODUCER)
        return (yield from open_producer(Opening(self.name, flags, OpenFlag.INCLUDE_DELETE_TIMES, controls, window)))

    def _converse(self, answer: Frame | None) -> None:
        if self._handshake is None:
            return
        try:
            if answer is None or self._asked is None:
                self._asked = next(self._handshake)
            else:
                self._asked = self._handshake.send(expect(self._asked, answer))
        except StopIteration:
            self._handshake = self._asked = None
            self._drain = Drain(
                self._arena,
                self.target,
                window_bytes=WINDOW_BYTES,
                silence_seconds=2.0 * NOOP_SECONDS,
                answer_seconds=60.0,
                now=self._loop.time(),
                markers=True,
            )
            self.ask(self.told)
        except (StatusError, ProtocolError) as error:  # a no-op may come in between: what is asked for twice
            self.disconnect(str(error))
        else:
            self._line.send(self._asked.encode())

    def _flush(self) -> None:
        if self._drain is not None:
            self._line.send(self._drain.data_to_send())

    def _received(self, data: bytes) -> None:
        if self._drain is None:
            for frame in self._frames.receive_data(data):
                self._converse(frame)
        else:
            self._data += data
            self._decode(self._drain)

    def _decode(self, drain: Drain) -> None:
        try:
            used = drain.receive(bytes(self._data), self._loop.time())
        except ProtocolError:
            raise
        except HeadwaterError as error:
            self.disconnect(str(error))
            return
        del self._data[:used]
        self._take(drain)
        if self._drain is drain:
            drain.processed(self._loop.time())
            self._flush()

    def _take(self, drain: Drain) -> None:
        rows = self._arena.batch().to_pylist() if self._arena.rows else []
        events, drain.events = drain.events, []
        self._check_markers(rows, events)
        touched: set[int] = set()
        for row in rows:
            vb = row["vbucket"]
            gone = row["opcode"] != Opcode.DCP_MUTATION
            seen = Seen(
                vb, row["seqno"], row["key"], None if gone else row["value"], row["cas"], row["rev_seqno"],
                row["flags"], row["expiry"],
            )  # fmt: skip
            self.told[vb].append(seen)
            touched.add(vb)
            self.on_seen(self, seen, drain.position(vb))
        for _, event in events:
            if isinstance(event, Opened):
                touched.add(event.vbucket)
            elif isinstance(event, RollbackNeeded):
                self._go_back(event)
                touched.discard(event.vbucket)
            elif isinstance(event, Ended | Refused):
                touched.add(event.vbucket)
        for vb in touched:
            self._save(drain.position(vb))

    def _check_markers(self, rows: list[dict[str, Any]], events: list[tuple[int, StreamEvent]]) -> None:
        """Check that a snapshot begins at a state that the consumer holds: if the branch ends within it, the consumer
        is rolled back there (decision 0089).
        """
        for before, event in events:
            if isinstance(event, Marked):
                held = [row["seqno"] for row in rows[:before] if row["vbucket"] == event.vbucket]
                last = held[-1] if held else self.position(event.vbucket).seqno
                if event.start_seqno > last:
                    told = f"a snapshot from {event.start_seqno} on, and has vbucket {event.vbucket} to {last}"
                    raise Broken(f"complete: {self.name} was announced {told}")

    def _save(self, position: Position) -> None:
        """Save the present position, and drop earlier ones to which it can no longer return."""
        places = self.saved[position.vbucket]
        while places and (not places[-1].complete or places[-1].seqno >= position.seqno):
            places.pop()
        places.append(position)

    def _go_back(self, event: RollbackNeeded) -> None:
        self.rollbacks += 1
        vb = event.vbucket
        place = safe_point(self.saved[vb], vb, event.seqno)
        self.told[vb] = [seen for seen in self.told[vb] if seen.seqno <= place.seqno]
        self.saved[vb] = [each for each in self.saved[vb] if each.complete and each.seqno <= place.seqno] or [place]
        self.ask([vb])
