"""One connection, many who wait on it: whatever happens to whom, somebody always reads (pipeline.py).

A wake-up that is lost shows as a task that waits for its deadline although its answer lies in the socket. Here tasks
run one at a time in an order of our choosing, the clock stands still, and a task that nothing wakes stays asleep.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import ConnectionLost, PeerSilent, RemoteProtocolError
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode

from .stepped import Node, Stepped

GET = Frame(0x80, Opcode.GET, b"k")
NEVER = 1e9


@pytest.fixture
def node():
    made = Node()
    yield made
    made.close()


def get(node: Node, deadline: float = NEVER) -> tuple[Stepped, Frame]:
    """A task that asks, and the answer it waits for."""
    task = Stepped(node.pipeline.call(GET, deadline))
    (asked,) = node.requests()
    return task, response(asked, value=b"%d" % asked.opaque)


def send_bulk(node: Node, count: int = 2):
    """A bulk that was sent and that nobody waits for yet, and the answer that ends it."""
    first = node.pipeline.reserve(count + 1)
    requests = b"".join(Frame(0x80, Opcode.SETQ, b"k", bytes(8), opaque=first + i).encode() for i in range(count))
    bulk = node.pipeline.send_bulk(first, count, requests)
    return bulk, response(node.requests()[-1])


def test_who_is_done_with_reading_wakes_another(node: Node):
    (reader, answer), (other, _) = get(node), get(node)
    node.say(answer)
    reader.go()
    assert reader.outcome == answer and other.is_awake


def test_who_is_woken_to_read_but_finds_its_answer_there_passes_the_reading_on(node: Node):
    (reader, first), (woken, second), (last, third) = get(node), get(node), get(node)
    node.say(first, second)
    reader.go()
    assert reader.outcome == first and woken.is_awake and not last.is_awake
    woken.go()
    assert woken.outcome == second and last.is_awake
    last.go()
    node.say(third)
    last.go_on()
    assert last.outcome == third


def test_a_bulk_that_nobody_waits_for_yet_is_not_the_one_to_read(node: Node):
    reader, answer = get(node)
    send_bulk(node)
    other, _ = get(node)
    node.say(answer)
    reader.go()
    assert reader.outcome == answer and other.is_awake


def test_a_bulk_that_was_given_up_leaves_the_reading_to_others(node: Node):
    bulk, noop = send_bulk(node)
    writer = Stepped(node.pipeline.finish_bulk(bulk, NEVER))
    other, answer = get(node)
    writer.cancel()
    assert other.is_awake
    node.say(noop, answer)
    other.go_on()
    assert other.outcome == answer


def test_a_request_that_was_given_up_leaves_the_reading_to_others(node: Node):
    (reader, late), (other, answer) = get(node), get(node)
    reader.cancel()
    assert other.is_awake
    node.say(late, answer)
    other.go_on()
    assert other.outcome == answer


def test_nobody_waits_longer_than_its_deadline_and_then_all_are_told(node: Node):
    (reader, _), (other, _) = get(node), get(node, deadline=105.0)
    node.clock.advance(5.0)
    other.go()
    assert isinstance(other.outcome, PeerSilent) and reader.is_awake
    reader.go()
    assert isinstance(reader.outcome, ConnectionLost)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (Frame(0x80, Opcode.GET), "GET.*: a request, on a connection where we ask"),
        (Frame(0x81, Opcode.GET, opaque=999), "GET.*: an answer with opaque 999, which was not asked"),
    ],
)
def test_what_was_not_asked_ends_the_connection_for_all(node: Node, frame: Frame, reason: str):
    (reader, _), (other, _) = get(node), get(node)
    node.say(frame)
    reader.go()
    other.go()
    with pytest.raises(RemoteProtocolError, match=reason):
        raise reader.outcome
    assert isinstance(other.outcome, ConnectionLost) and not node.pipeline.is_open


def test_a_bulk_ends_with_a_no_op_and_with_nothing_else(node: Node):
    bulk, noop = send_bulk(node)
    writer = Stepped(node.pipeline.finish_bulk(bulk, NEVER))
    node.say(Frame(0x81, Opcode.SETQ, opaque=noop.opaque))
    writer.go()
    with pytest.raises(RemoteProtocolError, match=rf"SETQ.*: the answer to a no-op \(opaque {noop.opaque}\)"):
        raise writer.outcome


def test_opaques_begin_again_before_they_overflow(node: Node):
    used = node.pipeline.reserve(1)
    node.pipeline.reserve(0xFFFF_FFF0 - used)
    assert node.pipeline.reserve(0xF) == 0xFFFF_FFF1
    assert node.pipeline.reserve(1) == 1


@given(st.data())
def test_in_whatever_order_answers_come_and_tasks_run_everybody_is_served(data: st.DataObject):
    node = Node()
    try:
        waiting = [get(node) for _ in range(data.draw(st.integers(2, 6)))]
        bulk, noop = send_bulk(node)
        waiting.append((Stepped(node.pipeline.finish_bulk(bulk, NEVER)), noop))
        unsent = data.draw(st.permutations([answer for _, answer in waiting]))
        while unsent or any(task.is_awake for task, _ in waiting):
            awake = [task for task, _ in waiting if task.is_awake]
            asleep = [task for task, _ in waiting if not task.is_over]
            match data.draw(st.sampled_from(["say"] * bool(unsent) + ["run"] * 2 * bool(awake) + ["cancel"])):
                case "say":
                    many = data.draw(st.integers(1, len(unsent)))
                    node.say(*unsent[:many])
                    unsent = unsent[many:]
                case "run":
                    data.draw(st.sampled_from(awake)).go()
                case _ if asleep:
                    data.draw(st.sampled_from(asleep)).cancel()
        assert [task.is_over for task, _ in waiting] == [True] * len(waiting)
        for task, answer in waiting:
            assert task.outcome in (answer, "cancelled") or task.outcome == [] == bulk.frames
    finally:
        node.close()
