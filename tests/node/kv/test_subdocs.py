"""Sub-document commands over frames: lookups, changes, attributes, tombstones, and how each refusal is told."""

import asyncio
import json
from collections.abc import Callable
from struct import pack, unpack

import pytest

from headwater.kernels.crc import crc32c
from headwater.node.kv.subdoc.in_turns import ATTEMPTS_MAX
from headwater.node.process.run_queue import LARGE_AT_ONCE, RunQueue
from headwater.wire import dcp, leb128, subdoc, xattr
from headwater.wire.datatype import Datatype
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.support import NOON, Talk

XATTR, MKDIR_P, MACRO = subdoc.PathFlag.XATTR, subdoc.PathFlag.MKDIR_P, subdoc.PathFlag.EXPAND_MACROS
MKDOC, ADD, DELETED, AS_DELETED, REVIVE = (int(each) for each in subdoc.DocumentFlag)
GET, EXISTS, COUNT = Opcode.SUBDOC_GET, Opcode.SUBDOC_EXISTS, Opcode.SUBDOC_GET_COUNT
UPSERT, DICT_ADD, DELETE = Opcode.SUBDOC_DICT_UPSERT, Opcode.SUBDOC_DICT_ADD, Opcode.SUBDOC_DELETE
COUNTER, PUSH = Opcode.SUBDOC_COUNTER, Opcode.SUBDOC_ARRAY_PUSH_LAST
BODY = {"a": 1, "b": {"c": [1, 2]}}


@pytest.fixture
def talking(talk: Talk) -> Talk:
    """A connection that has all that sub-documents need, and a document."""
    talk.hello(4, 6, 7, 0x0B, 0x0A, 0x15, 0x17, 0x18, 0x19, 0x20)
    assert store(talk).status == 0
    return talk


def store(talk: Talk, key: bytes = b"k", body: object = BODY, flags: int = 7, expiry: int = 0):
    return talk.one(1, key=key, extras=pack(">II", flags, expiry), value=json.dumps(body).encode())


def body(talk: Talk, key: bytes = b"k"):
    return json.loads(talk.one(0, key=key).value.split(b"\0")[-1])


def look(talk: Talk, opcode: int, path: bytes, flags: int = 0, doc_flags: int | None = None, key: bytes = b"k"):
    asked = subdoc.SubdocGet(key=key, path_bytes=len(path), flags=flags, doc_flags=doc_flags, value=path).frame()
    return talk.one(opcode, key=key, extras=asked.extras, value=path)


def change(
    talk: Talk,
    opcode: int,
    path: bytes,
    value: bytes = b"",
    flags: int = 0,
    cas: int = 0,
    key: bytes = b"k",
    **options: int,
):
    asked = subdoc.SubdocDictAdd(key=key, path_bytes=len(path), flags=flags, value=path + value, **options).frame()
    return talk.one(opcode, key=key, extras=asked.extras, value=asked.value, cas=cas)


def look_many(talk: Talk, *specs: tuple[int, int, bytes], doc_flags: int | None = None, key: bytes = b"k"):
    asked = subdoc.SubdocMultiLookup(key=key, specs=list(specs), doc_flags=doc_flags).frame()
    answer = talk.one(asked.opcode, key=key, extras=asked.extras, value=asked.value)
    if answer.status and answer.status not in (0xCC, 0xCD, 0xD3):
        return answer.status
    return answer.status, subdoc.SubdocMultiLookupResponse.decode(answer).results


def change_many(talk: Talk, *specs: tuple[int, int, bytes, bytes], cas: int = 0, key: bytes = b"k", **options: int):
    asked = subdoc.SubdocMultiMutation(key=key, specs=list(specs), **options).frame()
    return talk.one(asked.opcode, key=key, extras=asked.extras, value=asked.value, cas=cas)


def test_one_path_is_looked_up(talking: Talk) -> None:
    found = look(talking, GET, b"b.c")
    assert (found.status, found.value, found.datatype, found.cas) == (0, b"[1, 2]", 1, talking.one(0, key=b"k").cas)
    assert (look(talking, EXISTS, b"a").value, look(talking, COUNT, b"b.c").value) == (b"", b"2")
    assert look(talking, GET, b"z").status == look(talking, EXISTS, b"z").status == Status.SUBDOC_PATH_ENOENT
    assert look(talking, GET, b"a", key=b"none").status == Status.KEY_ENOENT


def test_others_have_their_turn_between_two_paths_that_take_long(talking: Talk) -> None:
    specs = [(GET, 0, b"a"), (EXISTS, 0, b"z"), (COUNT, 0, b"b.c")]
    at_once = look_many(talking, *specs)
    turns = list[int]()

    async def main() -> None:
        class Queue(RunQueue):
            async def turn(self) -> None:
                turns.append(1)
                await asyncio.sleep(0)

        talking.desk.loop = asyncio.get_running_loop()
        talking.desk.run_queue = Queue(talking.desk.loop)  # type: ignore[attr-defined]
        talking.connection.turn_is_over = lambda: True  # type: ignore[method-assign]
        asked = subdoc.SubdocMultiLookup(key=b"k", specs=specs).frame()
        talking.give(asked.encode())
        while talking.connection.is_paused:
            await asyncio.sleep(0)

    asyncio.run(main())
    (answer,) = FrameBuffer().receive_data(talking.bytes_sent())
    assert (answer.status, subdoc.SubdocMultiLookupResponse.decode(answer).results) == at_once
    assert len(turns) == 3


@pytest.mark.parametrize("meanwhile", ["users", "drop", "durable write of before"])
def test_paths_that_take_turns_are_of_their_collection_whatever_happens_meanwhile(
    talking: Talk, meanwhile: str
) -> None:
    """Somebody adds a user, or drops the collection, while the lookup waits for a place; or the node has become the
    owner, and settles a write of the owner before."""
    desk, vbucket, carts = talking.desk, talking.desk.bucket.vbuckets[0], 8
    desk.store.declarations.use_collections()
    made = desk.bucket.collections.manifest.with_collection("_default", "carts", None, carts)
    vbucket.become(made, lambda: 1)
    talking.hello(6, 7, 0x0B, 0x12)
    for collection, text in ((0, b'{"a":"theirs"}'), (carts, b'{"a":"ours"}')):
        assert talking.one(1, key=leb128.join_key(collection, b"k"), extras=bytes(8), value=text).status == 0
    drop = made.without_collection("_default", "carts")

    def prepared() -> None:
        key = leb128.join_key(carts, b"k")
        vbucket.prepares.add(dcp.Prepare(by_seqno=0, rev_seqno=2, durability_level=1, key=key, cas=1 << 16))
        desk.bucket.durable_writes.look_at(0)

    happens = {
        "users": talking.kv.users_changed,
        "drop": lambda: vbucket.become(drop, lambda: 2),
        "durable write of before": prepared,
    }[meanwhile]

    async def main() -> Frame:
        desk.loop = asyncio.get_running_loop()
        queue = desk.run_queue = Turns(desk.loop)  # type: ignore[attr-defined]
        queue.large = asyncio.Semaphore(0)  # others hold all places for large documents
        talking.connection.turn_is_over = lambda: True  # type: ignore[method-assign]
        asked = subdoc.SubdocMultiLookup(key=leb128.join_key(carts, b"k"), specs=[(GET, 0, b"a")] * 2).frame()
        talking.give(asked.encode())
        await asyncio.sleep(0)
        happens()
        queue.large.release()
        while talking.connection.is_paused:
            await asyncio.sleep(0)
        (answer,) = FrameBuffer().receive_data(talking.bytes_sent())
        return answer

    answer = asyncio.run(main())
    if meanwhile == "drop":
        assert answer.status == Status.UNKNOWN_COLLECTION
    elif meanwhile == "durable write of before":
        assert answer.status == Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS
    else:
        assert (answer.status, subdoc.SubdocMultiLookupResponse.decode(answer).results) == (0, [(0, b'"ours"')] * 2)


class Turns(RunQueue):
    """A queue that lets others go first at each turn, and has something happen at one of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, at: int = -1, happens: Callable[[], object] = bool) -> None:
        super().__init__(loop)
        self.taken, self._at, self._happens = 0, at, happens

    async def turn(self) -> None:
        self.taken += 1
        if self.taken == self._at:
            self._happens()
        await asyncio.sleep(0)


def test_paths_that_take_turns_hang_on_the_batch_of_the_document_that_they_show(talking: Talk) -> None:
    """Who is shown a version whose batch is lost between two paths must be cut off with the batch."""
    desk, gates = talking.desk, list[int]()
    desk.committer.commit()
    store(desk.session(), body={"a": 2})
    specs = [(GET, 0, b"a"), (EXISTS, 0, b"z"), (COUNT, 0, b"a")]

    async def main() -> None:
        desk.loop = asyncio.get_running_loop()
        desk.run_queue = Turns(desk.loop, 1, lambda: gates.append(talking.kv.written_gate))  # type: ignore[attr-defined]
        talking.connection.turn_is_over = lambda: True  # type: ignore[method-assign]
        talking.give(subdoc.SubdocMultiLookup(key=b"k", specs=specs).frame().encode())
        while talking.connection.is_paused:
            await asyncio.sleep(0)

    asyncio.run(main())
    (answer,) = FrameBuffer().receive_data(talking.bytes_sent())
    assert subdoc.SubdocMultiLookupResponse.decode(answer).results[0] == (0, b"2")
    assert gates == [desk.committer.open]


LARGE = {"pad": "x" * (5 << 20), "n": 1, "list": []}
LONG_SPECS = [
    (Opcode.SUBDOC_DICT_UPSERT, 4, b"about", b'{"by":1}'),
    (Opcode.SUBDOC_COUNTER, 0, b"n", b"4"),
    (Opcode.SUBDOC_ARRAY_PUSH_LAST, 0, b"list", b"7"),
    (Opcode.SUBDOC_REPLACE, 0, b"pad", b'"short"'),
]


def change_in_turns(talk: Talk, specs: list, at: int = -1, happens: Callable[[], object] = bool) -> tuple[Frame, int]:
    """Ask for a change that takes turns; return the answer, and how many it took."""

    async def main() -> tuple[Frame, int]:
        talk.desk.loop = asyncio.get_running_loop()
        queue = talk.desk.run_queue = Turns(talk.desk.loop, at, happens)  # type: ignore[attr-defined]
        frame = subdoc.SubdocMultiMutation(key=b"k", specs=specs).frame().encode()
        while not talk.give(frame):
            assert talk.connection.is_paused
            while "preparing" in talk.connection.paused:
                await asyncio.sleep(0)
            talk.desk.committer.commit()
        assert queue.large._value == LARGE_AT_ONCE  # each place was given back
        (answer,) = FrameBuffer().receive_data(talk.bytes_sent())
        return answer, queue.taken

    return asyncio.run(main())


def test_a_large_document_is_changed_path_by_path_with_turns_for_others(talking: Talk) -> None:
    store(talking, body=LARGE)
    answer, turns = change_in_turns(talking, LONG_SPECS)
    assert (answer.status, subdoc.SubdocMultiStored.decode(answer).results) == (0, [(1, 0, b"5")])
    assert body(talking) == {"pad": "short", "n": 5, "list": [7]}
    assert look(talking, GET, b"about.by", flags=4).value == b"1"
    assert turns == 1 + 3  # to read it, and for each path into the body


def test_a_small_document_is_changed_in_one_turn(talking: Talk) -> None:
    assert change_in_turns(talking, [(Opcode.SUBDOC_COUNTER, 0, b"a", b"1")] * 16)[1] == 0


def test_a_change_in_turns_that_fails_names_its_path_and_changes_nothing(talking: Talk) -> None:
    store(talking, body=LARGE)
    answer, _ = change_in_turns(talking, [*LONG_SPECS[:2], (Opcode.SUBDOC_REPLACE, 0, b"none.there", b"1")])
    assert (answer.status, answer.value) == (0xCC, pack(">BH", 2, Status.SUBDOC_PATH_ENOENT))
    assert body(talking) == LARGE and look(talking, GET, b"about", flags=4).status == Status.SUBDOC_PATH_ENOENT


def test_a_document_that_is_written_meanwhile_is_changed_as_it_is_then(talking: Talk) -> None:
    store(talking, body=LARGE)
    other = talking.desk.session()
    answer, turns = change_in_turns(talking, LONG_SPECS, 3, lambda: store(other, body={**LARGE, "n": 10}))
    assert (answer.status, subdoc.SubdocMultiStored.decode(answer).results) == (0, [(1, 0, b"14")])
    assert body(talking)["n"] == 14 and turns == 8


def test_a_document_that_is_written_all_the_time_is_changed_in_one_turn_at_last(talking: Talk) -> None:
    store(talking, body=LARGE)
    other, counted = talking.desk.session(), [1]

    class Busy(Turns):
        async def turn(self) -> None:
            counted[0] += 1
            store(other, body={**LARGE, "n": counted[0]})
            await super().turn()

    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(globals(), "Turns", Busy)
        answer, turns = change_in_turns(talking, LONG_SPECS)
    assert (answer.status, turns) == (0, 4 * ATTEMPTS_MAX) and body(talking)["n"] == counted[0] + 4


def test_a_document_that_is_removed_meanwhile_is_not_there_any_more(talking: Talk) -> None:
    store(talking, body=LARGE)
    other = talking.desk.session()
    assert change_in_turns(talking, LONG_SPECS, 3, lambda: other.one(4, key=b"k"))[0].status == Status.KEY_ENOENT


def test_a_vbucket_that_is_handed_over_meanwhile_is_refused(talking: Talk) -> None:
    store(talking, body=LARGE)
    vbucket = talking.desk.bucket.vbuckets[0]
    answer, _ = change_in_turns(talking, LONG_SPECS, 1, lambda: vbucket.set_state(State.REPLICA))
    assert answer.status == Status.NOT_MY_VBUCKET


def test_who_loses_the_bucket_amid_a_change_in_turns_is_told_so(talking: Talk) -> None:
    store(talking, body=LARGE)

    def revoke() -> None:
        talking.kv.bucket = None

    answer, _ = change_in_turns(talking, LONG_SPECS, 1, revoke)
    assert answer.status == Status.NO_BUCKET and not talking.connection.is_closed


def test_a_connection_that_closes_gives_its_place_for_a_large_document_back(talking: Talk) -> None:
    store(talking, body=LARGE)

    async def main() -> None:
        talking.desk.loop = asyncio.get_running_loop()
        queue = talking.desk.run_queue = Turns(talking.desk.loop, 2, talking.kv.closed)  # type: ignore[attr-defined]
        assert talking.give(subdoc.SubdocMultiMutation(key=b"k", specs=LONG_SPECS).frame().encode()) == 0
        while "preparing" in talking.connection.paused:
            await asyncio.sleep(0)
        assert queue.taken == 2 and queue.large._value == LARGE_AT_ONCE

    asyncio.run(main())


def test_a_change_in_turns_waits_for_its_edits_alone_and_asks_for_no_room(talking: Talk) -> None:
    """The committer would take it for one that had none: it makes more, or lets it wait as on a full disk."""
    store(talking, body=LARGE)

    async def main() -> None:
        talking.desk.loop = asyncio.get_running_loop()
        talking.desk.run_queue = Turns(talking.desk.loop, -1, bool)  # type: ignore[attr-defined]
        assert talking.give(subdoc.SubdocMultiMutation(key=b"k", specs=LONG_SPECS).frame().encode()) == 0
        assert talking.connection.paused == {"preparing"} and not talking.desk.committer.room
        talking.kv.closed()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())


def test_a_change_in_turns_keeps_no_place_for_a_large_document_while_its_vbucket_is_pending(talking: Talk) -> None:
    store(talking, body=LARGE)
    vbucket = talking.desk.bucket.vbuckets[0]

    async def main() -> None:
        talking.desk.loop = asyncio.get_running_loop()
        queue = talking.desk.run_queue = Turns(talking.desk.loop, 3, lambda: vbucket.set_state(State.PENDING))  # type: ignore[attr-defined]
        frame = subdoc.SubdocMultiMutation(key=b"k", specs=LONG_SPECS).frame().encode()
        assert talking.give(frame) == 0
        while "preparing" in talking.connection.paused:
            await asyncio.sleep(0)
        assert talking.give(frame) == 0 and "pending" in talking.connection.paused
        assert queue.large._value == LARGE_AT_ONCE

    asyncio.run(main())


def test_several_paths_have_a_status_each(talking: Talk) -> None:
    assert look_many(talking, (GET, 0, b"a"), (COUNT, 0, b"b"), (EXISTS, 0, b"b.c[1]"), (Opcode.GET, 0, b"")) == (
        Status.SUCCESS,
        [(0, b"1"), (0, b"1"), (0, b""), (0, json.dumps(BODY).encode())],
    )
    assert look_many(talking, (GET, 0, b"z"), (GET, 0, b"a.b"), (GET, 0, b"a..b"), (GET, 0, b"a")) == (
        Status.SUBDOC_MULTI_PATH_FAILURE,
        [(0xC0, b""), (0xC1, b""), (0xC2, b""), (0, b"1")],
    )


def test_several_paths_have_no_more_to_tell_than_an_answer_holds(talking: Talk) -> None:
    """An answer over 30 MiB ended the connection, and what was under way on it with it, after it took 600 MiB."""
    whole = b'{"a": 7, "b": "%b"}' % (b"x" * (19 << 20))
    assert talking.one(1, key=b"large", extras=bytes(8), value=whole).status == Status.SUCCESS
    asked = (Opcode.GET, 0, b""), (GET, 0, b"b"), (GET, 0, b"a"), (Opcode.GET, 0, b"")
    status, results = look_many(talking, *asked, key=b"large")
    assert status == Status.SUBDOC_MULTI_PATH_FAILURE
    assert [found for found, _ in results] == [0, Status.E2BIG, 0, Status.E2BIG]
    assert [value == expected for (_, value), expected in zip(results, (whole, b"", b"7", b""), strict=True)] == [
        True
    ] * 4


@pytest.mark.parametrize("value", [b"\xff" * 9, b"\xff\xff\x7f", b"\x05ab"])
def test_a_value_that_does_not_inflate_is_refused_and_the_connection_goes_on(talking: Talk, value: bytes) -> None:
    """A producer may have sent it, to a node of before it was held against the rules."""
    bucket = talking.desk.bucket
    bucket.store.staging.mutation(0, b"odd", value, cas=bucket.next_cas(0), rev_seqno=1, datatype=Datatype.SNAPPY)
    assert change(talking, UPSERT, b"a", b"1", key=b"odd").status == Status.EINVAL
    assert change_many(talking, (UPSERT, 0, b"a", b"1"), (UPSERT, 0, b"b", b"1"), key=b"odd").status == Status.EINVAL
    assert talking.one(Opcode.APPEND, key=b"odd", value=b"more").status == Status.EINVAL
    assert body(talking) == BODY


def test_what_is_no_json_has_no_paths(talking: Talk) -> None:
    talking.one(1, key=b"raw", extras=bytes(8), value=b"\xff{")
    assert look(talking, GET, b"a", key=b"raw").status == Status.SUBDOC_DOC_NOTJSON
    assert change(talking, UPSERT, b"a", b"1", key=b"raw").status == Status.SUBDOC_DOC_NOTJSON
    assert look_many(talking, (Opcode.GET, 0, b""), (GET, 0, b"a"), key=b"raw") == (0xCC, [(0, b"\xff{"), (0xC6, b"")])
    assert change(talking, UPSERT, b"x", b"1", XATTR, key=b"raw").status == 0
    assert look(talking, GET, b"x", XATTR, key=b"raw").value == b"1"


def test_a_change_is_one_of_the_document(talking: Talk) -> None:
    before = talking.one(0, key=b"k")
    made = change(talking, UPSERT, b"b.d", b'"new"')
    assert made.status == 0 and len(made.extras) == 16 and made.cas > before.cas
    stored = talking.desk.store.document(0, b"k")
    assert stored is not None and (stored.cas, stored.flags, stored.rev_seqno) == (made.cas, 7, 2)
    assert unpack(">QQ", made.extras)[1] == stored.seqno
    assert body(talking) == BODY | {"b": {"c": [1, 2], "d": "new"}}
    assert talking.one(0, key=b"k").datatype == 1


def test_a_counter_tells_the_sum(talking: Talk) -> None:
    assert change(talking, COUNTER, b"a", b"41").value == b"42"
    assert change(talking, COUNTER, b"a", b"x").status == Status.SUBDOC_DELTA_EINVAL


def test_a_change_over_another_version_is_refused(talking: Talk) -> None:
    cas = talking.one(0, key=b"k").cas
    assert change(talking, UPSERT, b"a", b"2", cas=cas + 1).status == Status.KEY_EEXISTS
    assert change(talking, UPSERT, b"a", b"2", cas=cas).status == 0
    assert change(talking, UPSERT, b"a", b"2", cas=cas, key=b"none").status == Status.KEY_ENOENT


def test_several_changes_are_all_made_or_none(talking: Talk) -> None:
    refused = change_many(talking, (UPSERT, 0, b"a", b"2"), (DICT_ADD, 0, b"b", b"1"), (UPSERT, 0, b"c", b"1"))
    assert (refused.status, refused.value) == (Status.SUBDOC_MULTI_PATH_FAILURE, bytes.fromhex("01 00c9"))
    assert body(talking) == BODY
    made = change_many(talking, (COUNTER, 0, b"a", b"5"), (PUSH, 0, b"b.c", b"3"), (COUNTER, MKDIR_P, b"n.m", b"-1"))
    assert subdoc.SubdocMultiStored.decode(made).results == [(0, 0, b"6"), (2, 0, b"-1")]
    assert body(talking) == {"a": 6, "b": {"c": [1, 2, 3]}, "n": {"m": -1}}


def test_a_document_is_made_when_asked(talking: Talk) -> None:
    assert change(talking, UPSERT, b"a", b"1", key=b"new").status == Status.KEY_ENOENT
    assert change(talking, UPSERT, b"a.b", b"1", MKDIR_P, key=b"new", doc_flags=MKDOC).status == 0
    assert body(talking, b"new") == {"a": {"b": 1}}
    assert change(talking, PUSH, b"", b"1", key=b"list", doc_flags=ADD).status == 0
    assert body(talking, b"list") == [1]
    assert change(talking, PUSH, b"", b"1", key=b"list", doc_flags=ADD).status == Status.KEY_EEXISTS
    assert change(talking, UPSERT, b"a", b"1", doc_flags=MKDOC | ADD).status == Status.EINVAL
    assert change(talking, UPSERT, b"a", b"1", doc_flags=0x80).status == Status.EINVAL


def test_an_expiry_is_given_taken_away_or_kept(talking: Talk) -> None:
    def expiry() -> int:
        stored = talking.desk.store.document(0, b"k")
        assert stored is not None
        return stored.expiry

    assert change(talking, UPSERT, b"a", b"1", expiration=100).status == 0 and expiry() == NOON + 100
    asked = subdoc.SubdocDictUpsert(key=b"k", path_bytes=1, value=b"a2", framing=bytes([0x50])).encode()
    talking.give(asked)
    talking.bytes_sent()
    assert expiry() == NOON + 100
    assert change(talking, UPSERT, b"a", b"1").status == 0 and expiry() == 0


def test_the_whole_body_can_be_part_of_a_change(talking: Talk) -> None:
    assert change_many(talking, (UPSERT, XATTR, b"x", b'{"y":[5]}'), (Opcode.SET, 0, b"", b'{"z":1}')).status == 0
    assert body(talking) == {"z": 1} and look(talking, GET, b"x.y", XATTR).value == b"[5]"
    swap = (Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR, XATTR, b"x.y", b"")
    assert change_many(talking, swap, (DELETE, XATTR, b"x", b"")).status == 0
    assert body(talking) == [5] and look(talking, GET, b"x", XATTR).status == Status.SUBDOC_PATH_ENOENT
    kept, lost = (UPSERT, XATTR, b"_kept", b"1"), (UPSERT, XATTR, b"lost", b"1")
    assert change_many(talking, kept, lost, (Opcode.DELETE, 0, b"", b"")).status == 0
    assert talking.one(0, key=b"k").status == Status.KEY_ENOENT
    assert look(talking, GET, b"$XTOC", XATTR, DELETED).value == b'["_kept"]'


@pytest.mark.parametrize(
    "behind", [(Opcode.SET, 0, b"", b"new"), (UPSERT, 0, b"a", b"1"), (Opcode.DELETE, 0, b"", b"")]
)
def test_nothing_stands_behind_the_deletion_of_the_body(talking: Talk, behind: tuple[int, int, bytes, bytes]) -> None:
    """A document that was set last would be gone, and the client told that all was done."""
    store(talking)
    answer = change_many(talking, (Opcode.DELETE, 0, b"", b""), behind)
    assert answer.status == Status.SUBDOC_INVALID_COMBO and body(talking) == BODY


@pytest.mark.parametrize("was_there", [False, True])
def test_what_is_not_there_can_not_be_deleted_by_a_path_either(talking: Talk, was_there: bool) -> None:
    if was_there:
        store(talking, b"other")
        talking.one(Opcode.DELETE, key=b"other")
    high = talking.desk.store.index.high_seqno(0)
    answer = change_many(talking, (Opcode.DELETE, 0, b"", b""), key=b"other", doc_flags=MKDOC)
    assert (answer.status, talking.desk.store.index.high_seqno(0)) == (Status.KEY_ENOENT, high)


def test_attributes_are_beside_the_body(talking: Talk) -> None:
    assert change(talking, UPSERT, b"meta.owner", b'"me"', XATTR | MKDIR_P).status == 0
    assert change(talking, UPSERT, b"meta.x.y", b"1", XATTR).status == Status.SUBDOC_PATH_ENOENT
    assert change(talking, COUNTER, b"meta.n", b"2", XATTR).value == b"2"
    assert look(talking, GET, b"meta", XATTR).value == b'{"owner":"me","n":2}'
    value = talking.desk.store.document(0, b"k").value  # type: ignore[union-attr]
    assert xattr.split(value) == ({"meta": b'{"owner":"me","n":2}'}, json.dumps(BODY).encode())
    assert change(talking, DELETE, b"meta", b"", XATTR).status == 0
    assert talking.desk.store.document(0, b"k").datatype == 1  # type: ignore[union-attr]


def test_a_plain_client_changes_the_body_and_keeps_the_attributes(talking: Talk) -> None:
    change(talking, UPSERT, b"x", b"1", XATTR)
    store(talking, body={"other": 1})
    assert look_many(talking, (GET, XATTR, b"x"), (GET, 0, b"other")) == (0, [(0, b"1"), (0, b"1")])


def test_what_a_document_is_can_be_asked_like_an_attribute(talking: Talk) -> None:
    store(talking, expiry=NOON + 60)
    change(talking, UPSERT, b"x", b"1", XATTR, expiration=NOON + 60)
    stored = talking.desk.store.document(0, b"k")
    assert stored is not None
    told = json.loads(look(talking, GET, b"$document", XATTR).value)
    vb_uuid = talking.desk.bucket.vbuckets[0].failover.newest.vb_uuid
    text = json.dumps(BODY).encode()
    assert told == {
        "CAS": f"0x{stored.cas:016x}",
        "datatype": ["json", "xattr"],
        "deleted": False,
        "exptime": NOON + 60,
        "flags": 7,
        "last_modified": str(NOON),
        "revid": str(stored.rev_seqno),
        "seqno": f"0x{stored.seqno:016x}",
        "value_bytes": len(text),
        "value_crc32c": f"0x{crc32c(text):08x}",
        "vbucket_uuid": f"0x{vb_uuid:016x}",
    }
    assert look(talking, GET, b"$document.exptime", XATTR).value == str(NOON + 60).encode()
    assert look(talking, GET, b"$vbucket.HLC.mode", XATTR).value == b'"real"'
    assert look(talking, GET, b"$XTOC", XATTR).value == b'["x"]'
    assert look(talking, GET, b"$nope", XATTR).status == Status.SUBDOC_XATTR_UNKNOWN_VATTR
    assert change(talking, UPSERT, b"$document.CAS", b"1", XATTR).status == Status.SUBDOC_XATTR_CANT_MODIFY_VATTR


def test_macros_stand_for_the_numbers_of_the_change(talking: Talk) -> None:
    macros = XATTR | MACRO | MKDIR_P
    cas = talking.one(0, key=b"k").cas
    made = change_many(
        talking,
        (UPSERT, macros, b"m.cas", b'"${Mutation.CAS}"'),
        (UPSERT, macros, b"m.seqno", b'"${Mutation.seqno}"'),
        (UPSERT, macros, b"m.crc", b'"${Mutation.value_crc32c}"'),
        (UPSERT, macros, b"m.before", b'"${$document.CAS}"'),
        (UPSERT, 0, b"a", b"9"),
    )
    assert made.status == 0
    text = json.dumps(BODY | {"a": 9}).encode()
    assert json.loads(look(talking, GET, b"m", XATTR).value) == {
        "cas": f"0x{made.cas.to_bytes(8, 'little').hex()}",
        "seqno": f"0x{unpack('>QQ', made.extras)[1]:016x}",
        "crc": f"0x{crc32c(text):08x}",
        "before": f"0x{cas:016x}",
    }
    assert change(talking, UPSERT, b"m", b'"plain"', macros).status == Status.SUBDOC_XATTR_UNKNOWN_MACRO
    assert change(talking, UPSERT, b"a", b'"${Mutation.CAS}"', MACRO).status == Status.SUBDOC_XATTR_INVALID_FLAG_COMBO


def test_a_tombstone_has_attributes(talking: Talk) -> None:
    assert change(talking, UPSERT, b"_s", b"1", XATTR, key=b"t", doc_flags=ADD | AS_DELETED).status == 0xCD
    assert talking.one(0, key=b"t").status == look(talking, GET, b"_s", XATTR, key=b"t").status == Status.KEY_ENOENT
    found = look(talking, GET, b"_s", XATTR, DELETED, key=b"t")
    assert (found.status, found.value) == (Status.SUBDOC_SUCCESS_DELETED, b"1")
    assert look_many(talking, (GET, XATTR, b"$document.deleted"), (GET, 0, b"a"), doc_flags=DELETED, key=b"t") == (
        Status.SUBDOC_MULTI_PATH_FAILURE_DELETED,
        [(0, b"true"), (Status.SUBDOC_DOC_NOTJSON, b"")],
    )
    assert change(talking, COUNTER, b"_s", b"1", XATTR, key=b"t", doc_flags=DELETED).status == 0xCD
    assert change(talking, UPSERT, b"a", b"1", key=b"t", doc_flags=DELETED).status == 0xD7
    assert change(talking, UPSERT, b"a", b"1", key=b"t", doc_flags=DELETED | REVIVE).status == 0
    assert body(talking, b"t") == {"a": 1} and look(talking, GET, b"_s", XATTR, key=b"t").value == b"2"
    assert change(talking, UPSERT, b"a", b"1", doc_flags=REVIVE).status == 0xD6
    assert change(talking, UPSERT, b"_s", b"1", XATTR, key=b"u", doc_flags=AS_DELETED).status == Status.EINVAL


def test_a_tombstone_that_is_asked_for_is_there_for_who_adds(talking: Talk) -> None:
    """Two transactions stage a document of one name: the first has it, and the second is told."""
    staged = XATTR | MKDIR_P
    add = DELETED | AS_DELETED | ADD
    assert change(talking, UPSERT, b"txn.id", b'"first"', staged, key=b"t", doc_flags=add).status == 0xCD
    refused = change(talking, UPSERT, b"txn.id", b'"second"', staged, key=b"t", doc_flags=add)
    assert refused.status == Status.KEY_EEXISTS
    found = look(talking, GET, b"txn.id", XATTR, DELETED, key=b"t")
    assert found.value == b'"first"'
    again = DELETED | AS_DELETED | MKDOC  # with its CAS, who looked at it may have it
    assert change(talking, UPSERT, b"txn.id", b"3", staged, key=b"t", doc_flags=again, cas=found.cas).status == 0xCD


@pytest.mark.parametrize("makes", [MKDOC, ADD])
def test_a_new_document_has_nothing_of_a_tombstone_but_what_a_deletion_keeps(talking: Talk, makes: int) -> None:
    """Else one that a client makes beside a transaction would look like one that the transaction staged."""
    for name in (b"txn", b"_s"):
        made = change(talking, UPSERT, name, b"1", XATTR, key=b"t", doc_flags=DELETED | AS_DELETED | MKDOC)
        assert made.status == 0xCD
    assert change(talking, UPSERT, b"a", b"1", key=b"t", doc_flags=makes).status == 0
    assert body(talking, b"t") == {"a": 1}
    assert look(talking, GET, b"$XTOC", XATTR, key=b"t").value == b'["_s"]'


def test_what_several_paths_may_not_be(talking: Talk) -> None:
    assert look_many(talking) == look_many(talking, *[(GET, 0, b"a")] * 17) == Status.SUBDOC_INVALID_COMBO
    assert look_many(talking, *[(GET, 0, b"a")] * 16) == (0, [(0, b"1")] * 16)
    assert look_many(talking, (UPSERT, 0, b"a")) == look_many(talking, (0xD0, 0, b"a")) == Status.SUBDOC_INVALID_COMBO
    assert look_many(talking, (GET, 0, b"a"), (GET, XATTR, b"x")) == Status.SUBDOC_INVALID_XATTR_ORDER
    assert look_many(talking, (Opcode.GET, 0, b"a")) == look_many(talking, (GET, MKDIR_P, b"a")) == Status.EINVAL
    assert change_many(talking, (GET, 0, b"a", b"")).status == Status.SUBDOC_INVALID_COMBO
    assert look_many(talking, (GET, XATTR, b"x" * 16)) == Status.XATTR_EINVAL


def levels(depth: int) -> bytes:
    return b".".join([b"a"] * depth)


@pytest.mark.parametrize(
    ("path", "looked_up", "changed"),
    [
        (levels(32), Status.SUBDOC_PATH_ENOENT, Status.SUCCESS),
        (levels(33), Status.SUBDOC_PATH_E2BIG, Status.SUBDOC_PATH_E2BIG),
        (b"a" * 1024, Status.SUBDOC_PATH_ENOENT, Status.SUCCESS),
        (b"a" * 1025, Status.EINVAL, Status.EINVAL),
        (b"a." * 511 + b"aa", Status.SUBDOC_PATH_E2BIG, Status.SUBDOC_PATH_E2BIG),
        (b"[0]" * 33, Status.SUBDOC_PATH_E2BIG, Status.SUBDOC_PATH_E2BIG),
    ],
    ids=["32 levels", "33 levels", "1 KiB", "1 KiB and 1", "512 levels", "33 elements"],
)
def test_a_path_is_as_long_and_deep_as_it_may_be(talk: Talk, path: bytes, looked_up: Status, changed: Status) -> None:
    """The status stands for one path and, in the list of several, for the one that has it."""
    talk.hello(4, 6, 7, 0x0B)
    assert store(talk, body={}).status == 0
    assert look(talk, GET, path).status == look(talk, EXISTS, path).status == looked_up
    several, made = look_many(talk, (GET, 0, path)), change_many(talk, (UPSERT, MKDIR_P, path, b"1")).status
    if looked_up == Status.EINVAL:  # as a request that is malformed
        assert several == made == Status.EINVAL
    else:
        assert several == (Status.SUBDOC_MULTI_PATH_FAILURE, [(looked_up, b"")])
        assert made == (Status.SUBDOC_MULTI_PATH_FAILURE if changed else Status.SUCCESS)
    assert change(talk, UPSERT, path, b"2", MKDIR_P).status == changed
    assert look(talk, GET, path).status == changed and (body(talk) == {}) == bool(changed)


def test_a_value_that_would_be_deeper_than_32_levels_is_refused(talking: Talk) -> None:
    deep = b"[" * 31 + b"]" * 31
    assert change(talking, UPSERT, b"d", deep).status == 0
    assert change(talking, UPSERT, b"e.f", deep, MKDIR_P).status == Status.SUBDOC_VALUE_ETOODEEP
    assert look(talking, EXISTS, b"e").status == Status.SUBDOC_PATH_ENOENT


def test_sixteen_changes_are_made_and_seventeen_are_not(talking: Talk) -> None:
    changes = [(UPSERT, 0, b"p%d" % n, b"%d" % n) for n in range(17)]
    assert change_many(talking, *changes).status == Status.SUBDOC_INVALID_COMBO
    assert body(talking) == BODY
    assert change_many(talking, *changes[:16]).status == 0
    assert body(talking) == BODY | {f"p{n}": n for n in range(16)}


def test_sixteen_paths_are_looked_up_and_seventeen_are_not(talking: Talk) -> None:
    paths = [(EXISTS, 0, b"p%d" % n) for n in range(16)]
    assert look_many(talking, *paths, (GET, 0, b"a")) == Status.SUBDOC_INVALID_COMBO
    assert look_many(talking, *paths[1:], (GET, 0, b"a")) == (0xCC, [(0xC0, b"")] * 15 + [(0, b"1")])


@pytest.mark.parametrize(("name", "status"), [(b"x" * 15, 0), (b"x" * 16, Status.XATTR_EINVAL)])
def test_the_name_of_an_attribute_has_15_bytes_at_most(talking: Talk, name: bytes, status: int) -> None:
    missing = status or Status.SUBDOC_PATH_ENOENT
    for path in (name, name + b".y"):
        assert look(talking, GET, path, XATTR).status == look(talking, EXISTS, path, XATTR).status == missing
        assert change(talking, UPSERT, path, b"{}", XATTR | MKDIR_P).status == status
        assert change_many(talking, (UPSERT, XATTR | MKDIR_P, path, b"{}")).status == status
        assert change(talking, DELETE, name, b"", XATTR).status == status
    assert body(talking) == BODY


def test_several_attributes_are_for_those_who_asked_for_it(talk: Talk) -> None:
    talk.hello(6, 7)
    store(talk)
    two = (GET, XATTR, b"x"), (GET, XATTR, b"y")
    assert look_many(talk, *two) == Status.SUBDOC_XATTR_INVALID_KEY_COMBO
    assert look_many(talk, (GET, XATTR, b"$document.flags"), (GET, XATTR, b"x")) == (0xCC, [(0, b"7"), (0xC0, b"")])
    talk.hello(6, 7, 0x20)
    assert look_many(talk, *two) == (0xCC, [(0xC0, b"")] * 2)


def test_attributes_are_for_those_who_negotiated_them(talk: Talk) -> None:
    store(talk)
    assert look(talk, GET, b"$document", XATTR).status == Status.NOT_SUPPORTED
    assert change(talk, UPSERT, b"x", b"1", XATTR).status == Status.NOT_SUPPORTED


def test_an_attribute_that_is_no_json_is_told(talking: Talk) -> None:
    value = xattr.join({"x": b"no json"}, b"{}")
    assert talking.one(1, key=b"k", extras=bytes(8), value=value, datatype=4).status == 0
    assert look(talking, GET, b"x.y", XATTR).status == Status.XATTR_EINVAL
    assert change(talking, UPSERT, b"x.y", b"1", XATTR).status == Status.XATTR_EINVAL


@pytest.mark.parametrize(
    ("opcode", "extras", "value"),
    [
        (GET, bytes(2), b"a"),
        (GET, b"\0\2\0", b"a"),
        (GET, b"\0\0\0", b""),
        (UPSERT, b"\0\5\0", b"a"),
        (UPSERT, b"\0\1\0\0\0", b"a1"),
        (DELETE, b"\0\1\0", b"a1"),
        (Opcode.SUBDOC_MULTI_LOOKUP, b"", b"\xc5\0\0\5a"),
        (Opcode.SUBDOC_MULTI_LOOKUP, b"", b"\xc5\0\0"),
        (Opcode.SUBDOC_MULTI_LOOKUP, b"\0\0", b"\xc5\0\0\1a"),
        (Opcode.SUBDOC_MULTI_MUTATION, b"", b"\xc8\0\0\1\xff\xff\xff\xffa1"),
    ],
)
def test_a_request_that_is_cut_or_overlong_is_refused(talking: Talk, opcode: int, extras: bytes, value: bytes) -> None:
    assert talking.one(opcode, key=b"k", extras=extras, value=value).status == Status.EINVAL


def test_a_change_that_makes_the_document_too_big_is_refused(talking: Talk) -> None:
    big = b'"' + b"x" * (19 << 20) + b'"'
    assert change(talking, UPSERT, b"big", big).status == 0
    talking.desk.committer.commit()
    assert change(talking, UPSERT, b"more", big[: 2 << 20] + b'"').status == Status.E2BIG
