"""Collections as a producer tells them to a replica: manifests that go backwards, ids that are none, in bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headwater.node.vbucket.prepares import Key
from headwater.wire import dcp
from headwater.wire.datatype import Datatype
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.dcp.test_consumer import takes_durable_writes
from tests.node.dcp.test_intake import Fed
from tests.node.replication.test_machine import VB
from tests.node.streams.support import StreamDesk

pytestmark = pytest.mark.usefixtures("replica")
CREATE, DROP = 0, 1


class Following(Fed):
    """A replica's connection with Collections, and its open stream."""

    def hello(self, *features: int) -> None:
        super().hello(*features, 0x12)

    def event(self, kind: int, uid: int, collection: int, name: bytes = b"") -> list[Frame]:
        """A system event of the default scope, as bytes: seqno, event, version 0; uid, scope, collection."""
        self.seqno += 1
        extras = self.seqno.to_bytes(8) + kind.to_bytes(4) + b"\0"
        value = uid.to_bytes(8) + bytes(4) + collection.to_bytes(4)
        return self.say(Frame(0x80, Opcode.DCP_SYSTEM_EVENT, name, extras, value, vbucket=VB, opaque=self.opaque))

    def mutation(self, key: bytes, datatype: int = 0) -> list[Frame]:
        """A change of the next seqno."""
        self.seqno += 1
        message = dcp.Mutation(
            vbucket=VB, opaque=self.opaque, cas=9, key=key, by_seqno=self.seqno, rev_seqno=1, value=b"v"
        )
        return self.say(replace(message.frame(), datatype=datatype))

    def prepare(self, key: bytes) -> list[Frame]:
        """A durable write of the next seqno that begins."""
        self.seqno += 1
        message = dcp.Prepare(
            vbucket=VB,
            opaque=self.opaque,
            cas=9,
            key=key,
            by_seqno=self.seqno,
            rev_seqno=1,
            durability_level=1,
            value=b"v",
        )
        return self.say(message.frame())


@pytest.fixture
def following(desk: StreamDesk) -> Following:
    made = Following(desk)
    made.announce(100, 1)
    return made


def manifest(desk: StreamDesk) -> tuple[int, dict[int, str]]:
    found = desk.bucket.vbuckets[VB].collections.manifest
    return found.uid, {number: each.name for number, (_, each) in found.by_id().items()}


def test_a_manifest_that_goes_backwards_brings_its_collections_and_no_older_uid(
    desk: StreamDesk, following: Following
) -> None:
    assert following.event(CREATE, 5, 8, b"a") == [] and manifest(desk) == (5, {0: "_default", 8: "a"})
    assert following.event(CREATE, 3, 9, b"b") == [] and manifest(desk) == (5, {0: "_default", 8: "a", 9: "b"})
    assert following.event(DROP, 4, 8) == [] and manifest(desk) == (5, {0: "_default", 9: "b"})


def test_a_drop_of_what_is_not_there_and_a_creation_of_what_is_change_nothing_else(
    desk: StreamDesk, following: Following
) -> None:
    assert following.event(CREATE, 1, 8, b"a") == []
    assert following.event(DROP, 2, 9) == following.event(CREATE, 3, 8, b"a") == []
    assert manifest(desk) == (3, {0: "_default", 8: "a"})
    assert following.mutation(b"\x08k") == [] and desk.bucket.vbuckets[VB].high_seqno == 4


def test_a_drop_ends_the_prepares_of_its_collection_for_behind_it_nobody_is_shown_how_they_ended(
    desk: StreamDesk, following: Following
) -> None:
    takes_durable_writes(following)
    prepares = desk.bucket.vbuckets[VB].prepares
    assert following.event(CREATE, 1, 8, b"a") == []
    assert following.prepare(b"\x08k") == following.prepare(b"\0k") == []
    desk.commit()
    following.seqno += 1  # the commit of the first, or its abort: of a collection that is gone by the snapshot's end
    assert following.event(DROP, 2, 8) == []
    assert prepares.pending == {Key(0, b"k"): 3}
    assert [each.by_seqno for each in desk.store.prepares.waiting(VB)] == [3], "so it is after a restart"
    desk.store.rollback(VB, 3)
    desk.bucket.vbuckets[VB].read_events()
    assert prepares.pending == {Key(8, b"k"): 2, Key(0, b"k"): 3}


@pytest.mark.parametrize(
    "key",
    [
        b"\x08",
        b"\x88",
        b"\x88\x80",
        b"\x88\x00k",
        b"\xff\xff\xff\xff\x10k",
        b"\x80\x80\x80\x80\x80\x01k",
        b"\x01k",
    ],
    ids=["no key", "cut", "cut twice", "overlong", "33 bits", "six bytes", "reserved"],
)
def test_a_change_whose_key_begins_with_no_id_is_refused_and_not_stored(
    desk: StreamDesk, following: Following, key: bytes
) -> None:
    assert following.event(CREATE, 1, 8, b"a") == []
    (refusal,) = following.mutation(key)
    assert (refusal.opcode, refusal.status) == (Opcode.DCP_MUTATION, Status.EINVAL)
    assert desk.bucket.vbuckets[VB].high_seqno == 1


@pytest.mark.parametrize(
    ("kind", "version", "length"), [(2, 0, 16), (5, 0, 16), (9, 0, 16), (0, 3, 16), (0, 0, 12), (1, 0, 3)]
)
def test_an_event_that_is_none_is_refused(
    desk: StreamDesk, following: Following, kind: int, version: int, length: int
) -> None:
    extras = (1).to_bytes(8) + kind.to_bytes(4) + bytes([version])
    (refusal,) = following.say(
        Frame(0x80, Opcode.DCP_SYSTEM_EVENT, b"a", extras, bytes(length), vbucket=VB, opaque=following.opaque)
    )
    assert refusal.status == Status.EINVAL and manifest(desk) == (0, {0: "_default"})


def test_when_its_collection_is_dropped_a_change_that_was_refused_is_missing_no_more(
    desk: StreamDesk, following: Following
) -> None:
    """Nothing needs to follow: a takeover is the next that comes."""
    assert following.event(CREATE, 1, 8, b"a") == []
    (refusal,) = following.mutation(b"\x08k", Datatype.SNAPPY)
    assert refusal.status == Status.EINVAL and desk.bucket.vbuckets[VB].refused_changes == 1
    assert following.event(DROP, 2, 8) == []
    assert desk.bucket.vbuckets[VB].refused_changes == 0
