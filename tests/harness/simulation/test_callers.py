"""A client that asks a simulated node is answered, or hears that it is not."""

from __future__ import annotations

from harness.simulation.callers import Caller
from harness.simulation.host import Crash, Host
from harness.simulation.lines import PLACE
from harness.simulation.scheduler import Schedule, SimLoop
from harness.simulation.sockets import Link, Network
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import State


class Talk:
    """A node, somebody who asks it, and what came back."""

    def __init__(self) -> None:
        self.schedule = Schedule(seed=1)
        self.network = Network(self.schedule)
        self.host = Host(self.schedule, self.network, "n0", vbuckets=1)
        self.caller = Caller(self.network, SimLoop(self.schedule, self.network, PLACE), "n0")
        self.answers: list[Frame | None] = []

    def ask(self, opcode: int, **sections: bytes | int) -> None:
        self.caller.ask(opcode, self.answers.append, **sections)


def test_answers_go_to_who_asked() -> None:
    talk = Talk()
    talk.host.start()
    talk.ask(Opcode.SET_VBUCKET, extras=bytes([State.ACTIVE]))
    talk.ask(Opcode.SET, key=b"key", value=b"value", extras=bytes(8))
    talk.ask(Opcode.GET, key=b"key")
    assert talk.answers == []
    talk.schedule.run(1.0)
    opcodes = [answer and (answer.opcode, answer.status) for answer in talk.answers]
    assert opcodes == [(Opcode.SET_VBUCKET, 0), (Opcode.SET, 0), (Opcode.GET, 0)]
    assert talk.answers[2] is not None and talk.answers[2].value == b"value"
    assert talk.answers[1] is not None and len(talk.answers[1].extras) == 16  # vb uuid and seqno


def test_where_nobody_listens_the_answer_is_none_at_once() -> None:
    talk = Talk()
    talk.ask(Opcode.NOOP)
    assert talk.answers == [None]


def test_a_crash_answers_none_and_the_next_request_calls_again() -> None:
    talk = Talk()
    talk.host.start()
    talk.ask(Opcode.NOOP)
    talk.host.crash(Crash.KILL)
    talk.schedule.run(1.0)
    assert talk.answers == [None]
    talk.host.start()
    talk.ask(Opcode.NOOP)
    talk.schedule.run(1.0)
    assert talk.answers[1] is not None and talk.answers[1].opcode == Opcode.NOOP


def test_who_hangs_up_waits_no_more() -> None:
    talk = Talk()
    talk.host.start()
    talk.network.set_link("n0", PLACE, Link.UP)
    talk.ask(Opcode.NOOP)
    talk.network.set_link("n0", PLACE, Link.STALLED)
    talk.schedule.run(1.0)
    assert talk.answers == []
    talk.caller.hang_up()
    assert talk.answers == [None]
    talk.network.set_link("n0", PLACE, Link.UP)
    talk.schedule.run(3.0)
    assert talk.answers == [None]
