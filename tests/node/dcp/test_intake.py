"""Changes in bulk: where they are counted, what is known to be a backfill, what the index is prepared for."""

from __future__ import annotations

import pytest

from headwater.kernels import index
from headwater.node.dcp.consumer import ConsumerSession
from headwater.node.dcp.intake import BULK_BYTES
from headwater.node.storage.staging import COMING_MIN
from headwater.wire import dcp
from headwater.wire.dcp import SnapshotFlag
from headwater.wire.framing import FrameBuffer
from headwater.wire.opcodes import Opcode
from tests.node.replication.test_machine import VB, Passive
from tests.node.streams.support import Producer, StreamDesk

pytestmark = pytest.mark.usefixtures("replica")

VALUE = bytes(range(250))
OTHER_VB = VB + 1


class Fed(Passive):
    """A replica's connection with one open stream."""

    def __init__(self, desk: StreamDesk) -> None:
        desk.set(OTHER_VB, "large", bytes(2 << 20))  # a log that has little keeps little room for the next batch
        desk.commit()
        super().__init__(desk)
        self.opaque, _ = self.add()
        self.seqno = 0

    @property
    def session(self) -> ConsumerSession:
        session: object = self.connection.session
        assert isinstance(session, ConsumerSession)
        return session

    def announce(self, end: int, flags: int) -> None:
        start = self.seqno + 1
        frame = dcp.SnapshotMarker(vbucket=VB, opaque=self.opaque, start_seqno=start, end_seqno=end, flags=flags)
        self.give(frame.encode())

    def changes(self, count: int) -> bytes:
        """The next ones."""
        self.seqno += count
        return b"".join(
            dcp.Mutation(
                vbucket=VB, opaque=self.opaque, cas=9, key=b"k%d" % seqno, by_seqno=seqno, rev_seqno=1, value=VALUE
            ).encode()
            for seqno in range(self.seqno - count + 1, self.seqno + 1)
        )

    def acknowledged(self) -> list[int]:
        """Return the bytes acknowledged since the last call."""
        frames = FrameBuffer().receive_data(self.bytes_sent())
        return [int.from_bytes(frame.extras) for frame in frames if frame.opcode == Opcode.DCP_BUFFER_ACKNOWLEDGEMENT]


@pytest.mark.parametrize(("flags", "unread"), [(SnapshotFlag.DISK, True), (SnapshotFlag.MEMORY, False)])
def test_a_backfill_is_written_as_what_nobody_reads_soon(desk: StreamDesk, flags: int, unread: bool) -> None:
    fed = Fed(desk)
    desk.commit()
    fed.announce(5000, flags)
    desk.commit()
    fed.give(fed.changes(4000))
    batch = desk.store.freeze()
    assert batch is not None and batch.is_unread == unread
    desk.store.write(batch)
    desk.store.settle(batch)
    for number in (1, 2000, 4000):
        found = desk.store.document(VB, b"k%d" % number)
        assert found is not None and (found.seqno, bytes(found.value), found.durable) == (number, VALUE, True)


def test_what_follows_a_backfill_is_read_as_ever(desk: StreamDesk) -> None:
    fed = Fed(desk)
    fed.announce(2, SnapshotFlag.DISK)
    fed.give(fed.changes(2))
    desk.commit()
    fed.announce(6000, SnapshotFlag.MEMORY)
    fed.give(fed.changes(5000))
    batch = desk.store.freeze()
    assert batch is not None and not batch.is_unread
    desk.store.write(batch)
    desk.store.settle(batch)


def test_a_vbucket_that_is_streamed_from_is_read_at_once(desk: StreamDesk) -> None:
    fed = Fed(desk)  # a stream of before would end with the new branch
    desk.commit()
    reader = Producer(desk)
    assert reader.request(VB).status == 0
    fed.announce(5000, SnapshotFlag.DISK)
    fed.give(fed.changes(4000))
    assert desk.store.staging.arena.unread_bytes == 0


def test_the_index_is_prepared_for_what_was_announced(desk: StreamDesk) -> None:
    fed = Fed(desk)
    fed.announce(3000, SnapshotFlag.DISK)
    fed.give(fed.changes(1))
    assert desk.store.table[VB, index.CAPACITY] == 3000
    fed.give(fed.changes(2999))
    assert desk.store.index.items(VB) == desk.store.table[VB, index.CAPACITY] == 3000


def test_a_connection_gives_way_after_its_vbucket_grew(desk: StreamDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """All vbuckets of a move may outgrow their columns at the same time."""
    fed = Fed(desk)
    fed.announce(2**63 - 1, SnapshotFlag.DISK)
    grown, grow = [0], desk.store.staging.grow

    def counted(vbucket: int, coming: int = 0) -> None:
        grown[0] += 1
        grow(vbucket, coming)

    def gives_way() -> bool:
        fed.connection.pause("turn")
        return True

    monkeypatch.setattr(desk.store.staging, "grow", counted)
    monkeypatch.setattr(fed.connection, "gives_way", gives_way)
    data = fed.changes(COMING_MIN + 100)
    taken = 0
    for _ in range(10):
        before = grown[0]
        taken += fed.give(data[taken:])
        assert grown[0] - before <= 1
        fed.connection.resume("turn")
        desk.commit()
        fed.connection.resume("commit")
    assert taken == len(data) and grown[0] > 1


def test_an_announcement_is_believed_within_reason(desk: StreamDesk) -> None:
    fed = Fed(desk)
    fed.announce(2**63 - 1, SnapshotFlag.DISK)
    fed.give(fed.changes(1))
    assert desk.store.table[VB, index.CAPACITY] == COMING_MIN
    fed.give(fed.changes(COMING_MIN))
    assert desk.store.table[VB, index.CAPACITY] == 5 * COMING_MIN


def test_of_large_pieces_a_fifth_of_the_window_is_acknowledged_at_once(desk: StreamDesk) -> None:
    fed = Fed(desk)
    fed.announce(100_000, SnapshotFlag.DISK)
    fed.acknowledged()
    window, sent, told = fed.session.consumer.window.window_bytes, 0, 0
    while sent <= window / 5:
        assert told == 0
        data = fed.changes(BULK_BYTES // 300)
        assert len(data) >= BULK_BYTES
        fed.give(data)
        sent += len(data)
        told = sum(fed.acknowledged())
        desk.commit()
    assert told == sent + 44  # the marker as well


def test_a_small_piece_is_acknowledged_with_all_that_is_owed(desk: StreamDesk) -> None:
    fed = Fed(desk)
    fed.announce(100_000, SnapshotFlag.MEMORY)
    fed.acknowledged()
    large, small = fed.changes(BULK_BYTES // 300), fed.changes(1)
    fed.give(large)
    assert fed.acknowledged() == []
    fed.give(small)
    assert fed.acknowledged() == [len(large) + len(small) + 44]
    assert (fed.session.intake.changes, fed.session.intake.bytes) == (BULK_BYTES // 300 + 1, len(large) + len(small))
