"""The text protocol over a real store: each conversation as literal bytes, and cut at every byte the same."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.accounts.roles import Grant
from headwater.node.kv.text import TextSession
from headwater.node.users.logins import Users
from headwater.wire.header import VALUE_BYTES_MAX
from headwater.wire.vbucket import State, vbucket_of
from tests.node.support import Desk, FakeConnection, desk


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path, vbuckets=1) as made:
        yield made


class Line:
    """A text connection: what it does not take stays in front of what comes next."""

    def __init__(self, desk: Desk) -> None:
        self.connection = FakeConnection()
        self.session = TextSession(self.connection, desk)  # type: ignore[arg-type]
        self.left = b""

    def say(self, data: bytes = b"") -> bytes:
        """The answer to some bytes, whatever they wait for."""
        self.left += data
        self.left = self.left[self.session.receive(memoryview(self.left)) :]
        answer = b"".join(sent for sent, _ in self.connection.sent)
        self.connection.sent.clear()
        return answer


def told(one: Desk, data: bytes) -> bytes:
    """The answers to a conversation of one connection, with each CAS as `#`."""
    return re.sub(rb"(?<!\d)\d{19}(?!\d)", b"#", Line(one).say(data))


# --- the classic commands ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (b"get a\r\n", b"END\r\n"),
        (b"set a 7 0 5\r\nhello\r\nget a\r\n", b"STORED\r\nVALUE a 7 5\r\nhello\r\nEND\r\n"),
        (b"set a 0 0 0\r\n\r\nget a b a\r\n", b"STORED\r\nVALUE a 0 0\r\n\r\nVALUE a 0 0\r\n\r\nEND\r\n"),
        (b"set a 4294967295 0 1\r\nx\r\ngets a\r\n", b"STORED\r\nVALUE a 4294967295 1 #\r\nx\r\nEND\r\n"),
        (b"set a 0 0 1\r\nx\r\ngat 10 a\r\ngats 10 a b\r\n",
         b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\nVALUE a 0 1 #\r\nx\r\nEND\r\n"),
        (b"add a 0 0 1\r\nx\r\nadd a 0 0 1\r\ny\r\n", b"STORED\r\nNOT_STORED\r\n"),
        (b"replace a 0 0 1\r\nx\r\nset a 0 0 1\r\nx\r\nreplace a 0 0 1\r\ny\r\n",
         b"NOT_STORED\r\nSTORED\r\nSTORED\r\n"),
        (b"append a 0 0 1\r\nx\r\nset a 3 0 1\r\nx\r\nappend a 9 9 1\r\ny\r\nprepend a 0 0 1\r\nw\r\nget a\r\n",
         b"NOT_STORED\r\nSTORED\r\nSTORED\r\nSTORED\r\nVALUE a 3 3\r\nwxy\r\nEND\r\n"),
        (b"cas a 0 0 1 5\r\nx\r\nset a 0 0 1\r\nx\r\ncas a 0 0 1 5\r\ny\r\ncas a 0 0 1 0\r\ny\r\n",
         b"NOT_FOUND\r\nSTORED\r\nEXISTS\r\nEXISTS\r\n"),
        (b"cas b 0 0 1 0\r\ny\r\nget b\r\n", b"NOT_FOUND\r\nEND\r\n"),
        (b"delete a\r\nset a 0 0 1\r\nx\r\ndelete a 0\r\nget a\r\n", b"NOT_FOUND\r\nSTORED\r\nDELETED\r\nEND\r\n"),
        (b"delete a 1\r\n", b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n"),
        (b"touch a 5\r\nset a 0 0 1\r\nx\r\ntouch a 5\r\n", b"NOT_FOUND\r\nSTORED\r\nTOUCHED\r\n"),
        (b"set a 0 -1 1\r\nx\r\nget a\r\n", b"STORED\r\nEND\r\n"),
        (b"incr a 1\r\nset a 0 0 2\r\n10\r\nincr a 5\r\ndecr a 6\r\ndecr a 10\r\nget a\r\n",
         b"NOT_FOUND\r\nSTORED\r\n15\r\n9\r\n0\r\nVALUE a 0 1\r\n0\r\nEND\r\n"),
        (b"set a 0 0 20\r\n18446744073709551615\r\nincr a 2\r\n", b"STORED\r\n1\r\n"),
        (b"set a 0 0 1\r\nx\r\nincr a 1\r\n",
         b"STORED\r\nCLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
        (b"incr a x\r\nincr a -1\r\n", b"CLIENT_ERROR invalid numeric delta argument\r\n" * 2),
        (b"touch a x\r\ngat x a\r\nflush_all x\r\n", b"CLIENT_ERROR invalid exptime argument\r\n" * 3),
        (b"set a 0 0 1\r\nx\r\nflush_all\r\nget a\r\n", b"STORED\r\nOK\r\nEND\r\n"),
        (b"version\r\n", b"VERSION 7.6.0-0000-headwater\r\n"),
        (b"verbosity 1\r\nverbosity\r\nverbosity x\r\nverbosity noreply\r\n",
         b"OK\r\nERROR\r\nCLIENT_ERROR bad command line format\r\n"),
        (b"stats uuid x\r\nstats nonsense\r\nstats reset\r\n", None),
    ],
)  # fmt: skip
def test_a_conversation(one: Desk, asked: bytes, answered: bytes | None) -> None:
    if answered is None:
        answered = b"STAT uuid %b\r\nEND\r\nERROR\r\nRESET\r\n" % one.bucket.uuid.encode()
    assert told(one, asked) == answered


def test_a_cas_that_gets_told_stores_once(one: Desk) -> None:
    line = Line(one)
    line.say(b"set a 0 0 1\r\nx\r\n")
    cas = line.say(b"gets a\r\n").split()[4]
    assert line.say(b"cas a 0 0 1 %b\r\ny\r\n" % cas) == b"STORED\r\n"
    assert line.say(b"cas a 0 0 1 %b\r\nz\r\n" % cas) == b"EXISTS\r\n"


def test_an_expiry_counts_from_now_and_is_a_date_beyond_thirty_days(one: Desk) -> None:
    line = Line(one)
    line.say(b"set soon 0 60 1\r\nx\r\nset date 0 %d 1\r\nx\r\n" % (one.clock.seconds + 60))
    one.clock.seconds += 59
    assert line.say(b"get soon date\r\n").count(b"VALUE") == 2
    one.clock.seconds += 1
    assert line.say(b"get soon date\r\n") == b"END\r\n"


def test_noreply_is_told_nothing_of_failures_neither(one: Desk) -> None:
    said = (
        b"set a 0 0 1 noreply\r\nx\r\nadd a 0 0 1 noreply\r\ny\r\nincr a 1 noreply\r\ntouch a x noreply\r\n"
        b"append a 0 0 1 noreply\r\ny\r\ndelete b noreply\r\ndelete b 0 noreply\r\nverbosity 1 noreply\r\n"
        b"set a 0 0 99999999 noreply\r\n" + b"x" * 99999999 + b"\r\nget a\r\nflush_all noreply\r\nget a\r\n"
    )
    assert told(one, said) == b"VALUE a 0 2\r\nxy\r\nEND\r\nEND\r\n"


def test_quit_closes_and_nothing_behind_it_is_heard(one: Desk) -> None:
    line, order = Line(one), []
    sent, line.connection.finish = (
        line.connection.send,
        lambda: order.append("finished") or line.connection.pause("end"),
    )
    line.connection.send = lambda data, gate=0: order.append("sent") or sent(data, gate)
    assert line.say(b"get a\r\nquit\r\nset a 0 0 1\r\nx\r\n") == b"END\r\n"
    assert order == ["sent", "finished"], "what was asked before is answered"
    assert told(one, b"get a\r\n") == b"END\r\n"


# --- the meta commands ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (b"mn\r\n", b"MN\r\n"),
        (b"mg a v\r\nmg a k O7\r\nmg a q\r\nmn\r\n", b"EN\r\nEN ka O7\r\nMN\r\n"),
        (b"set a 5 0 5\r\nhello\r\nmg a\r\nmg a v f t s k c O12 q\r\n",
         b"STORED\r\nHD\r\nVA 5 f5 t-1 s5 ka c# O12\r\nhello\r\n"),
        (b"set a 5 0 1\r\nx\r\nmg a T30 t\r\nmg a t\r\n", b"STORED\r\nHD t30\r\nHD t30\r\n"),
        (b"ms YSBi 2 b k c\r\nhi\r\nmg YSBi b k v\r\n", b"HD b kYSBi c#\r\nVA 2 b kYSBi\r\nhi\r\n"),
        (b"mg !! b\r\nmg YQ= b\r\n", b"CLIENT_ERROR error decoding key\r\n" * 2),
        (b"ms a 2 F3 T60 s O1\r\nhi\r\nmg a f t v\r\nms a 2 q\r\nyo\r\nmn\r\n",
         b"HD s2 O1\r\nVA 2 f3 t60\r\nhi\r\nMN\r\n"),
        (b"ms a 1 MR\r\nx\r\nms a 1 MA\r\nx\r\nms a 1 ME\r\nx\r\nms a 1 ME\r\nx\r\n", b"NS\r\nNS\r\nHD\r\nNS\r\n"),
        (b"ms a 1\r\nx\r\nms a 1 MA\r\ny\r\nms a 1 MP\r\nw\r\nmg a v\r\n", b"HD\r\nHD\r\nHD\r\nVA 3\r\nwxy\r\n"),
        (b"ms a 1 MA N60\r\nx\r\nmg a t v\r\n", b"HD\r\nVA 1 t60\r\nx\r\n"),
        (b"ms a 1 C5\r\nx\r\nms a 1\r\nx\r\nms a 1 C5 k\r\nx\r\nms a 1 C0\r\nx\r\n", b"NF\r\nHD\r\nEX ka\r\nEX\r\n"),
        (b"ms a 1 Mx\r\nx\r\n", b"CLIENT_ERROR invalid mode for ms M token\r\n"),
        (b"md a\r\nmd a q\r\nms a 1\r\nx\r\nmd a C5\r\nmd a k O3\r\n", b"NF\r\nHD\r\nEX\r\nHD ka O3\r\n"),
        (b"ma a\r\nma a N0 J13 v t\r\nma a D5 v\r\nma a MD v\r\nma a q\r\nma a T9 t k\r\n",
         b"NF\r\nVA 2 t-1\r\n13\r\nVA 2\r\n18\r\nVA 2\r\n17\r\nHD t9 ka\r\n"),
        (b"ms a 1\r\nx\r\nma a\r\n", b"HD\r\nCLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
        (b"me a\r\nms a 1 T5\r\nx\r\nme a\r\n", b"EN\r\nHD\r\nME a exp=5 cas=# size=1\r\n"),
        (b"mg a v v\r\nmg a ?\r\nms a 1 C\r\nx\r\nmg a h\r\nmd a I\r\n",
         b"CLIENT_ERROR duplicate flag\r\nCLIENT_ERROR invalid flag\r\n"
         b"CLIENT_ERROR bad token in command line format\r\n"
         b"CLIENT_ERROR flag h is not served\r\nCLIENT_ERROR flag I is not served\r\n"),
    ],
)  # fmt: skip
def test_a_meta_conversation(one: Desk, asked: bytes, answered: bytes) -> None:
    assert told(one, asked) == answered


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [b"nonsense", b"", b"get", b"GET a", b"set a 0 0", b"incr a", b"delete", b"touch a", b"cas a 0 0", b"gat 5"],
)
def test_a_line_that_is_no_command_is_an_error_and_the_conversation_goes_on(one: Desk, asked: bytes) -> None:
    assert told(one, asked + b"\r\nmn\r\n") == b"ERROR\r\nMN\r\n"


@pytest.mark.parametrize(
    "asked",
    [
        b"set a x 0 2\r\nhi",
        b"set a -1 0 2\r\nhi",
        b"set a 0 soon 2\r\nhi",
        b"set a 0 0 x",
        b"set a 0 0 -1",
        b"set a 0 0 2147483647",
        b"cas a 0 0 2 x\r\nhi",
        b"set " + b"k" * 251 + b" 0 0 2\r\nhi",
        b"get a " + b"k" * 251,
        b"ms a x",
        b"mg",
    ],
)
def test_a_bad_line_costs_itself_and_its_data_only(one: Desk, asked: bytes) -> None:
    assert told(one, asked + b"\r\nmn\r\n") == b"CLIENT_ERROR bad command line format\r\nMN\r\n"
    assert told(one, b"get a\r\n") == b"END\r\n"


def test_data_without_its_end_is_a_bad_chunk_and_stores_nothing(one: Desk) -> None:
    assert told(one, b"set a 0 0 2\r\nlong\r\nget a\r\n") == b"CLIENT_ERROR bad data chunk\r\nERROR\r\nEND\r\n"


def test_an_object_that_is_too_large_is_swallowed_and_what_there_was_stays(one: Desk) -> None:
    line, large = Line(one), VALUE_BYTES_MAX + 1
    line.say(b"set a 0 0 3\r\nold\r\n")
    assert line.say(b"set a 0 0 %d\r\n" % large) == b"SERVER_ERROR object too large for cache\r\n"
    for _ in range(19):
        line.say(b"flush_all\r\n" * 95326)
        assert len(line.left) == 0, "nothing is kept"
    rest = large + 2 - 19 * 95326 * 11
    assert line.say(b"x" * rest + b"get a\r\n") == b"VALUE a 0 3\r\nold\r\nEND\r\n"


def test_append_beyond_the_largest_object_is_refused_as_well(one: Desk) -> None:
    line, half = Line(one), VALUE_BYTES_MAX // 2 + 1
    data = b"%d\r\n" % half + b"x" * half + b"\r\n"
    assert line.say(b"set a 0 0 " + data + b"append a 0 0 " + data) == (
        b"STORED\r\nSERVER_ERROR object too large for cache\r\n"
    )


def test_a_line_without_end_closes(one: Desk) -> None:
    line = Line(one)
    assert line.say(b"x" * 3000) == b"CLIENT_ERROR line too long\r\n" and line.connection.finished


# --- as for every other client ----------------------------------------------------------------------------------------


def test_an_answer_waits_for_its_batch_and_so_does_a_read_of_it(one: Desk) -> None:
    line, other = Line(one), Line(one)
    for each, said in ((line, b"set a 0 0 1\r\nx\r\n"), (other, b"get a\r\n"), (line, b"version\r\n")):
        each.session.receive(memoryview(said))
        assert each.connection.sent[-1][1] == one.committer.open
    one.committer.commit()
    other.session.receive(memoryview(b"get a\r\n"))
    assert other.connection.sent[-1][1] <= one.committer.durable


def test_a_key_is_asked_for_in_its_own_vbucket_as_binary_clients_do(tmp_path: Path) -> None:
    with desk(tmp_path, vbuckets=4) as one:
        told(one, b"".join(b"set k%d 0 0 1\r\nx\r\n" % each for each in range(20)))
        for each in range(20):
            key = b"k%d" % each
            assert one.store.document(vbucket_of(key, 4), key) is not None


def test_a_vbucket_that_is_not_here_is_refused_with_its_owner(one: Desk) -> None:
    one.bucket.vbuckets[0].set_state(State.REPLICA)
    line = Line(one)
    assert line.say(b"get a\r\n") == (b"SERVER_ERROR not my vbucket: vbucket 0 belongs to no node at present\r\n")
    config = b'{"vBucketServerMap":{"serverList":["here:1","there:2"],"vBucketMap":[[1,0]]}}'
    one.cluster.take((2, 1), config)
    assert line.say(b"set a 0 0 1\r\nx\r\nmg a v\r\nmn\r\n") == (
        b"SERVER_ERROR not my vbucket: vbucket 0 belongs to there:2\r\n" * 2 + b"MN\r\n"
    )


def test_a_pending_vbucket_parks_the_command_and_all_behind_it(one: Desk) -> None:
    async def story() -> None:
        one.bucket.vbuckets[0].set_state(State.PENDING)
        line = Line(one)
        assert line.say(b"version\r\nset a 0 0 1\r\nx\r\nget a\r\n").startswith(b"VERSION") and line.left
        one.bucket.vbuckets[0].set_state(State.ACTIVE)
        await asyncio.sleep(0)
        one.committer.commit()
        assert not line.connection.paused
        assert line.say() == b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n"

    asyncio.run(story())


def test_a_locked_document_is_a_temporary_failure(one: Desk) -> None:
    told(one, b"set a 0 0 1\r\nx\r\n")
    assert one.session().one(0x94, key=b"a").status == 0
    assert told(one, b"set a 0 0 1\r\ny\r\n") == b"SERVER_ERROR temporary failure: the document is locked\r\n"


def test_many_keys_give_way_and_go_on_where_they_stood(one: Desk) -> None:
    line = Line(one)
    line.say(b"set a 0 0 1\r\nx\r\n")
    turns = iter([False, False, False, True])
    line.connection.gives_way = lambda: next(turns, False) and not line.connection.pause("turn")  # type: ignore
    assert line.say(b"get a a a\r\nmn\r\n") == b"VALUE a 0 1\r\nx\r\n" * 2
    line.connection.paused.clear()
    assert line.say() == b"VALUE a 0 1\r\nx\r\nEND\r\nMN\r\n"


def test_keys_that_are_not_there_give_way_as_well(one: Desk) -> None:
    line, asked = Line(one), one.bucket.counters["cmd_get"]
    turns = iter([False, False, True])
    line.connection.gives_way = lambda: next(turns, False) and not line.connection.pause("turn")  # type: ignore
    assert line.say(b"get " + b"k " * 1000 + b"\r\n") == b""
    assert one.bucket.counters["cmd_get"] - asked == 2
    line.connection.paused.clear()
    assert line.say() == b"END\r\n" and one.bucket.counters["cmd_get"] - asked == 1000


def test_a_reader_that_takes_nothing_stops_the_values_between_two_keys(one: Desk) -> None:
    line = Line(one)
    line.say(b"set a 0 0 100000\r\n" + b"x" * 100000 + b"\r\n")
    sent = line.connection.send

    def send(data: bytes | memoryview, gate: int = 0) -> None:
        sent(data, gate)
        line.connection.pause("output")

    line.connection.send = send  # type: ignore[method-assign]
    assert line.say(b"get a a a\r\n").count(b"VALUE") == 1
    line.connection.paused.clear()
    assert line.say().count(b"VALUE") == 1


# --- who may ----------------------------------------------------------------------------------------------------------


async def judged(line: Line) -> bytes:
    """The answer once the password was judged."""
    while line.session.parking.is_at_work:
        await asyncio.sleep(0.01)
    line.connection.paused.discard("parked")
    return line.say()


def test_where_there_are_users_the_first_set_is_a_login(one: Desk) -> None:
    one.users = Users({"ann": "secret"}, {"ann": (Grant("read"), Grant("write"))})

    async def story() -> None:
        one.loop = asyncio.get_running_loop()
        line = Line(one)
        for asked in (b"get a", b"version", b"add a 0 0 10\r\nann secret", b"set a 0 0 3000\r\n" + b"x" * 3000):
            assert line.say(asked + b"\r\n") == b"CLIENT_ERROR unauthenticated\r\n"
        assert not line.connection.is_known
        assert line.say(b"set x 0 0 3\r\nann\r\n") == b"CLIENT_ERROR bad authentication token format\r\n"
        line.say(b"set x 0 0 9\r\nann wrong\r\n")
        assert await judged(line) == b"CLIENT_ERROR authentication failure\r\n"
        line.say(b"set x 0 0 10\r\nann secret\r\nset a 0 0 1\r\nx\r\nget a\r\n")
        assert await judged(line) == b"STORED\r\nSTORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n"
        assert line.connection.is_known and line.session.user == "ann"

    asyncio.run(story())


def test_a_password_is_not_taken_from_another_machine(one: Desk) -> None:
    one.users = Users({"ann": "secret"})

    async def story() -> None:
        one.loop = asyncio.get_running_loop()
        line = Line(one)
        line.connection.peer = "192.0.2.1:9"
        line.say(b"set x 0 0 10\r\nann secret\r\n")
        assert await judged(line) == b"CLIENT_ERROR authentication failure\r\n"

    asyncio.run(story())


def test_a_user_does_what_its_roles_allow(one: Desk) -> None:
    one.users = Users({"ann": "secret"}, {"ann": (Grant("read"),)})

    async def story() -> None:
        one.loop = asyncio.get_running_loop()
        line = Line(one)
        line.say(b"set x 0 0 10\r\nann secret\r\n")
        assert await judged(line) == b"STORED\r\n"
        assert line.say(b"get a\r\n") == b"END\r\n"
        assert line.say(b"set a 0 0 1\r\nx\r\n") == b"CLIENT_ERROR access denied: SET needs write\r\n"
        assert line.say(b"flush_all\r\n") == b"CLIENT_ERROR access denied: FLUSH needs administer\r\n"
        assert one.warnings[-1] == "user 'ann' may not FLUSH: it needs administer"

    asyncio.run(story())


# --- cut anywhere -----------------------------------------------------------------------------------------------------

TALK = (
    b"set a 5 0 5\r\nhe\r\no\r\nget a b\r\nnonsense\r\n\r\nset a 0 0 2\r\nlong\r\nset big 0 0 99999999\r\n"
    + b"set a 0 0 1\r\nx\r\n" * 3
)
REST = b"incr n 1\r\nms n 2 k\r\n10\r\nincr n 1 noreply\r\nmg n v s\r\nappend n 0 0 1\r\n0\r\nget n a\r\nmd n\r\nmn\r\n"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk(tmp_path_factory.mktemp("cut"), vbuckets=1) as made:
        yield made


def cut(one: Desk, talk: bytes, cuts: list[int]) -> bytes:
    line, ends = Line(one), sorted({*cuts, len(talk)})
    answers = b"".join(line.say(talk[begin:end]) for begin, end in zip([0, *ends], ends, strict=False))
    return answers + told(one, b"flush_all\r\n")


@settings(max_examples=60)
@given(st.data())
def test_cut_at_any_byte_the_answers_are_the_same(shared: Desk, data: st.DataObject) -> None:
    for talk in (TALK, REST):
        cuts = data.draw(st.lists(st.integers(1, len(talk) - 1), max_size=6))
        assert cut(shared, talk, cuts) == cut(shared, talk, [])


def test_byte_by_byte_the_answers_are_the_same(shared: Desk) -> None:
    for talk in (TALK, REST):
        assert cut(shared, talk, list(range(len(talk)))) == cut(shared, talk, [])
