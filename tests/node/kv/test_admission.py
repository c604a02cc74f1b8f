"""The order of the general rules, as a client sees it: of two that a request breaks, the first is its answer."""

from __future__ import annotations

import json

import pytest

from headwater.accounts.roles import read_grants
from headwater.errors import RemoteProtocolError
from headwater.node.durable_writes import Copies
from headwater.node.kv.admission import STRANGER_FRAME_BYTES_MAX, check_stranger
from headwater.node.storage.staging import Staging
from headwater.node.storage.store import Store
from headwater.node.users.logins import Users
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.manifest import CollectionsManifest
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.aware import manifest
from tests.node.support import Desk, Talk

XERROR, COLLECTIONS = 0x07, 0x12
DURABLE, BAD_LEVEL, UNKNOWN_INFO = b"\x11\x01", b"\x11\x09", b"\x30"
MISSING, REPLICA = 9, 3
UNKNOWN_OPCODE = 0x7E


@pytest.fixture
def broken(counter: Desk, monkeypatch: pytest.MonkeyPatch) -> Talk:
    """A session on a bucket in which much is wrong: a replica, a full disk, no collection but the default one."""
    talk = counter.session()
    talk.hello(XERROR, COLLECTIONS)
    becomes(talk, REPLICA, State.REPLICA)
    fill(monkeypatch)
    return talk


def fill(monkeypatch: pytest.MonkeyPatch, is_full: bool = True) -> None:
    """Let the disk be full, or have room again."""
    monkeypatch.setattr(Store, "full", property(lambda store: is_full))
    monkeypatch.setattr(Staging, "may_delete", property(lambda staging: not is_full))


def becomes(talk: Talk, vbucket: int, state: State) -> None:
    """Give a vbucket another state."""
    assert talk.one(Opcode.SET_VBUCKET, extras=bytes([state]), vbucket=vbucket).status == 0


def test_a_collection_that_the_node_has_and_a_vbucket_is_about_to_have_is_a_temporary_failure(counter: Desk) -> None:
    """A thousand vbuckets get a new one after the other, and one that was promoted a moment later. A client that had
    its id from the manifest was told that there is no such collection, and raised that error."""
    talk, bucket = counter.session(), counter.bucket
    talk.hello(XERROR, COLLECTIONS)
    bucket.collections.manifest = CollectionsManifest.decode(manifest(1, a=8))
    asked = [
        {"opcode": Opcode.SET, "key": b"\x08k", "extras": bytes(8)},
        {"opcode": Opcode.GET_KEYS, "key": b"\x08k"},
        {"opcode": Opcode.OBSERVE, "value": b"\0\0\0\2\x08k"},
    ]
    assert [talk.one(**each).status for each in asked] == [Status.ETMPFAIL] * 3
    assert talk.one(Opcode.SET, key=b"\x09k", extras=bytes(8)).status == Status.UNKNOWN_COLLECTION
    bucket.vbuckets[0].become(bucket.collections.manifest, lambda: bucket.next_cas(0))
    assert [talk.one(**each).status for each in asked] == [0] * 3


def answer_of(talk: Talk, opcode: int, **sections: object) -> tuple[int, str]:
    """Status and explanation of the one answer."""
    request = Frame(0x08, opcode, **sections).encode()  # type: ignore[arg-type]
    assert talk.give(request) == len(request)
    (answer,) = FrameBuffer().receive_data(talk.bytes_sent())
    told = json.loads(answer.value)["error"]["context"] if answer.value.startswith(b'{"error"') else ""
    return answer.status, told


# Each request breaks the rule of its line and all that are below it; the status is that of its own rule.
RULES: list[tuple[int, dict[str, object], str]] = [
    (Status.EINVAL, {"datatype": 8, "framing": BAD_LEVEL, "key": b"\x80", "vbucket": MISSING}, "datatype 0x08"),
    (
        Status.DURABILITY_INVALID_LEVEL,
        {"framing": BAD_LEVEL, "key": b"\x80", "vbucket": MISSING},
        "durability level 9 is not 1, 2 or 3",
    ),
    (Status.UNKNOWN_FRAME_INFO, {"framing": UNKNOWN_INFO, "key": b"\x80", "vbucket": MISSING}, "frame info 3"),
    (Status.EINVAL, {"framing": DURABLE, "key": b"\x80", "vbucket": MISSING}, ""),
    (Status.EINVAL, {"framing": DURABLE, "key": b"\x01k", "vbucket": MISSING}, "collection 1 is the system's own"),
    (Status.EINVAL, {"framing": DURABLE, "key": b"\x09k", "extras": b"", "vbucket": MISSING}, ""),
    (Status.NOT_MY_VBUCKET, {"framing": DURABLE, "key": b"\x09k", "vbucket": MISSING}, ""),
    (Status.NOT_MY_VBUCKET, {"framing": DURABLE, "key": b"\x09k", "vbucket": REPLICA}, ""),
    (Status.UNKNOWN_COLLECTION, {"framing": DURABLE, "key": b"\x09k"}, ""),
    (Status.ETMPFAIL, {"key": b"\x00k"}, "the disk, or the bucket's quota, is full"),
]


@pytest.mark.parametrize(("status", "sections", "told"), RULES)
def test_of_the_rules_that_a_set_breaks_the_first_is_its_answer(
    broken: Talk, status: int, sections: dict[str, object], told: str
) -> None:
    found, words = answer_of(broken, Opcode.SET, **{"extras": bytes(8), "value": b"v", **sections})
    assert found == status and told in words


def test_a_durable_write_is_judged_before_the_disk_and_the_lock(broken: Talk, counter: Desk) -> None:
    counter.bucket.durable_writes.copies_of = lambda vb: Copies(3)
    sections = {"key": b"\x00k", "extras": bytes(8), "value": b"v"}
    assert answer_of(broken, Opcode.SET, framing=DURABLE, **sections)[0] == Status.DURABILITY_IMPOSSIBLE
    assert answer_of(broken, Opcode.SET, **sections)[0] == Status.ETMPFAIL


def test_a_lock_is_looked_at_last(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    talk.hello(XERROR)
    assert talk.one(Opcode.SET, key=b"k", extras=bytes(8), value=b"v").status == 0
    assert talk.one(Opcode.GET_LOCKED, key=b"k").status == 0
    assert answer_of(talk, Opcode.SET, key=b"k", extras=bytes(8), value=b"w")[0] == Status.LOCKED
    fill(monkeypatch)
    assert answer_of(talk, Opcode.SET, key=b"k", extras=bytes(8), value=b"w")[0] == Status.ETMPFAIL


def test_a_stranger_is_not_told_which_commands_there_are(counter: Desk) -> None:
    counter.users = Users({"ann": "secret"}, {"ann": read_grants("read:default")})
    talk = counter.session()
    talk.hello(XERROR)
    for opcode in (UNKNOWN_OPCODE, Opcode.SET, Opcode.GET):
        assert answer_of(talk, opcode, datatype=8, framing=BAD_LEVEL)[0] == Status.EACCESS


def test_rights_come_before_the_form_and_a_bucket_behind_it(counter: Desk) -> None:
    counter.users = Users({"ann": "secret"}, {"ann": read_grants("read:default")})
    talk = counter.session()
    talk.hello(XERROR)
    talk.kv.user = "ann"
    talk.kv.select(counter)  # type: ignore[arg-type]
    assert answer_of(talk, UNKNOWN_OPCODE, datatype=8)[0] == Status.UNKNOWN_COMMAND
    assert answer_of(talk, Opcode.SET, datatype=8)[0] == Status.EACCESS
    assert answer_of(talk, Opcode.GET, datatype=8)[0] == Status.EINVAL
    talk.kv.deselect()
    assert answer_of(talk, Opcode.GET, datatype=8)[0] == Status.EINVAL
    assert answer_of(talk, Opcode.GET, key=b"k", extras=b"too long")[0] == Status.NO_BUCKET


def test_a_pending_vbucket_is_waited_for_before_the_collection_is_looked_up(
    broken: Talk, counter: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = counter.session()
    fill(monkeypatch, is_full=False)
    becomes(operator, 1, State.PENDING)
    request = Frame(0x80, Opcode.GET, key=b"\x09k", vbucket=1).encode()
    assert broken.give(request) == 0 and broken.connection.paused == {"pending"} and not broken.bytes_sent()


def test_the_header_of_a_stranger_is_judged_as_soon_as_it_is_there() -> None:
    data = Frame(0x80, Opcode.SASL_AUTH, key=b"PLAIN", value=bytes(STRANGER_FRAME_BYTES_MAX)).encode()
    check_stranger(memoryview(data)[:23], 0)
    with pytest.raises(RemoteProtocolError, match="before it has logged in"):
        check_stranger(memoryview(data)[:24], 0)
    check_stranger(memoryview(Frame(0x80, Opcode.SASL_AUTH, value=bytes(1000)).encode()), 0)
