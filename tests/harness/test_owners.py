"""The checker itself: what must not be is found."""

import socket
from threading import Thread
from zlib import crc32

import pytest

from harness.checker import Ledger, Shown, Violation
from harness.owners import Line, Nomad, OwnerWatch, check_history
from headwater import testing
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State

LOG = [(3, 20), (2, 10), (1, 0)]


def test_a_history_that_holds_what_was_acknowledged_is_fine():
    check_history(LOG, [(1, 10), (2, 20), (3, 21)], before=[(2, 10), (1, 0)])


@pytest.mark.parametrize(
    ("log", "acknowledged", "before", "why"),
    [
        (LOG, [(9, 5)], [], "that is gone"),
        (LOG, [(2, 21)], [], "left that branch at 20"),
        (LOG, [], [(7, 0)], "the history began as"),
        ([(3, 5), (2, 10), (1, 0)], [], [], "no failover log"),
        ([(1, 5), (1, 0)], [], [], "no failover log"),
        ([(1, 5)], [], [], "no failover log"),
        ([], [], [], "no failover log"),
    ],
)
def test_a_history_that_lacks_something_is_found_out(log, acknowledged, before, why):
    with pytest.raises(Violation, match=why):
        check_history(log, acknowledged, before)


# --------------------------------------------------------------------------- a watch


class Told:
    """A line to a node that answers as it is told to: what is called next, then the last for ever."""

    def __init__(self, *answers):
        self.answers, self.asked, self.is_open, self.when_over = list(answers), [], False, lambda: None

    def call(self, frame):
        self.asked.append(frame)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if len(self.answers) == 1:
            self.when_over()
        self.is_open = answer is not None
        return answer(frame) if callable(answer) else answer

    def close(self):
        self.is_open = False


def state(number):
    return lambda frame: response(frame, value=number.to_bytes(4))


def status(number):
    return lambda frame: response(frame, number)


ACTIVE, DEAD, GONE = state(State.ACTIVE), state(State.DEAD), None


def watched(one, other):
    """The violations a watch found while its nodes said that; each is asked until it has nothing more to say."""
    watch = OwnerWatch(1, 2, 5)
    watch._lines = lines = (Told(*one, GONE), Told(*other, GONE))
    for line in lines:
        line.when_over = lambda: all(len(line.answers) == 1 for line in lines) and watch._over.set()
    watch.run()
    assert lines[0].asked[0].vbucket == 5 and lines[0].asked[0].opcode == Opcode.GET_VBUCKET
    return watch.violations


def test_one_that_is_active_before_and_after_the_other_was_active_with_it():
    assert watched([ACTIVE, ACTIVE], [ACTIVE, DEAD]) == ["both nodes own vbucket 5 (sample 2)"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([ACTIVE, DEAD, DEAD], [DEAD, ACTIVE, ACTIVE]),
        ([ACTIVE, DEAD], [ACTIVE, ACTIVE]),  # it changed hands between the two questions
        ([ACTIVE, GONE, ACTIVE], [DEAD, DEAD, DEAD]),
        ([ACTIVE, ACTIVE], [status(Status.NOT_MY_VBUCKET)] * 2),
    ],
    ids=["a hand-over", "one between two questions", "away for a while", "not there"],
)
def test_one_owner_after_the_other_is_no_violation(one, other):
    assert watched(one, other) == []


def test_two_owners_are_seen():
    with testing.node(vbuckets=2) as one:
        watch = OwnerWatch(one.port, one.port, 0)  # one node in both places is two owners
        watch.start()
        watch.wait_samples(10)
        with pytest.raises(Violation, match="both nodes own vbucket 0"):
            watch.finish()


# --------------------------------------------------------------------------- a writer


def stored(uuid, seqno):
    return lambda frame: response(frame, extras=uuid.to_bytes(8) + seqno.to_bytes(8), cas=seqno)


def wandered(a, b, writes=3):
    """A nomad after so many writes to nodes that answer so, its ledger, and its lines."""
    ledger = Ledger()
    nomad = Nomad(ledger, {"a": 1, "b": 2}, 5, keys=2)
    nomad._lines = {"a": Told(*a), "b": Told(*b)}
    for number in range(1, writes + 1):
        nomad._write(number)
    return nomad, ledger


def test_a_nomad_writes_where_it_is_taken_in():
    nomad, _ = wandered([stored(9, 1), stored(9, 2), stored(9, 3)], [status(Status.NOT_MY_VBUCKET)])
    assert nomad.acknowledged == [(9, 1), (9, 2), (9, 3)] and nomad.by_node == {"a": 3, "b": 0}
    asked = nomad._lines["a"].asked
    assert [(frame.opcode, frame.vbucket, frame.key, frame.value) for frame in asked[:2]] == [
        (Opcode.SET, 5, b"n5-0-1", b"5-1"),
        (Opcode.SET, 5, b"n5-0-0", b"5-2"),
    ]


@pytest.mark.parametrize("refusal", [Status.NOT_MY_VBUCKET, Status.ETMPFAIL])
def test_a_refused_write_goes_to_the_next_node(refusal):
    nomad, _ = wandered([status(refusal)], [stored(9, 1)], writes=1)
    assert nomad.by_node == {"a": 0, "b": 1} and nomad.refusals == 1


def test_a_write_whose_connection_broke_may_have_happened_and_ends_the_prefix():
    nomad, ledger = wandered([stored(9, 1), GONE], [stored(9, 2)])
    assert nomad.acknowledged == [(9, 1), (9, 2)]
    assert nomad._lines["b"].asked[0].key == b"n5-1-1"  # of its next life
    ledger.settle([Shown(5, 1, b"n5-0-1", crc32(b"5-1"), 1), Shown(5, 2, b"n5-1-1", crc32(b"5-3"), 2)])


def test_an_answer_that_nobody_should_give_is_a_violation():
    with pytest.raises(Violation, match="was answered"):
        wandered([status(Status.EINTERNAL)], [GONE], writes=1)


def test_what_a_nomad_died_of_is_raised_when_it_is_stopped():
    nomad = Nomad(Ledger(), {"a": 1}, 5)
    nomad._lines = {"a": Told(status(Status.EINTERNAL))}
    nomad.start()
    nomad.join(120)
    with pytest.raises(Violation):
        nomad.finish()


# --------------------------------------------------------------------------- a line


def test_a_line_to_nobody_brings_no_answer():
    line = Line(1)
    assert line.call(Frame(0x80, Opcode.NOOP)) is None and not line.is_open


class Dripping:
    """A socket that gives a byte at a time, then its end."""

    def __init__(self, data):
        self.data = iter(data)

    def recv(self, _size):
        return bytes([byte]) if (byte := next(self.data, None)) is not None else b""


def test_an_answer_is_read_to_its_end_however_it_is_cut():
    answer = Frame(0x81, Opcode.NOOP, value=b"four")
    assert Line._read(Dripping(answer.encode())) == answer
    for count in (0, 23, 27):
        with pytest.raises(ConnectionError, match="the node hung up"):
            Line._read(Dripping(answer.encode()[:count]))


def test_a_line_says_hello_once_and_notices_the_end():
    heard = []

    def node(listener):
        with listener.accept()[0] as sock:
            for _ in range(3):
                header = sock.recv(24, socket.MSG_WAITALL)
                frame = Frame.decode(header + sock.recv(int.from_bytes(header[8:12]), socket.MSG_WAITALL))
                heard.append(frame.opcode)
                sock.sendall(response(frame).encode())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        answering = Thread(target=node, args=(listener,))
        answering.start()
        line = Line(listener.getsockname()[1])
        answers = [line.call(Frame(0x80, opcode)) for opcode in (Opcode.NOOP, Opcode.VERSION)]
        answering.join(120)
    assert heard == [Opcode.HELLO, Opcode.NOOP, Opcode.VERSION]
    assert [answer.opcode for answer in answers] == heard[1:] and line.is_open
    assert line.call(Frame(0x80, Opcode.NOOP)) is None and not line.is_open
