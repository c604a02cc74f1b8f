"""The controls that a drain's connection asks for, and how long its node may be silent."""

import pytest

from headwater.client.options import DrainOptions
from headwater.client.worker import AGAIN, SERVER_IDLE_SECONDS, Task, opening, silence_seconds
from headwater.errors import ConnectionLost
from headwater.protocol.dcp.position import ClaimedPosition, Position
from headwater.testing import node
from headwater.transport.waiting import Ready, Resolve
from headwater.wire.dcp import OpenFlag


def test_the_controls_are_asked_in_their_order():
    made = opening(DrainOptions(name="n", window_bytes=1000, noop_interval_seconds=0.5))
    assert (made.name, made.optional) == (
        "n",
        (
            ("enable_noop", "true"),
            ("set_noop_interval", "0.5"),
            ("connection_buffer_size", "1000"),
            ("enable_expiry_opcode", "true"),
        ),
    )


def test_a_node_with_collections_is_asked_to_tell_of_their_changes_and_of_purges():
    """Without Collections both are refused (dcp 4)."""
    asked = opening(DrainOptions(), collections=True).optional[-2:]
    assert asked == (("flatbuffers_system_events", "true"), ("max_marker_version", "2.2"))
    assert not {"flatbuffers_system_events", "max_marker_version"} & dict(opening(DrainOptions()).optional).keys()


def test_who_wants_every_version_asks_for_change_streams():
    """In the order of dcp 4: between the events of version 2 and the version of markers."""
    asked = [key for key, _ in opening(DrainOptions(history=True), collections=True).optional]
    assert asked[-3:] == ["flatbuffers_system_events", "change_streams", "max_marker_version"]
    assert ("change_streams", "true") in opening(DrainOptions(history=True)).optional
    assert "change_streams" not in dict(opening(DrainOptions(), collections=True).optional)


def test_who_begins_with_claims_says_so():
    controls = [dict(opening(DrainOptions(), claims=claims).optional) for claims in (False, True)]
    assert [control.get("headwater_claims") for control in controls] == [None, "true"]


@pytest.mark.parametrize(("kind", "seqnos"), [(ClaimedPosition, [3]), (Position, [3, 4, 5])])
def test_a_claimed_range_is_read_to_the_end_that_is_asked_for(kind: type[Position], seqnos: list[int]):
    """Other positions inside of a snapshot are led to its end."""
    with node(vbuckets=1) as running, running.client() as bucket:
        for number in range(5):
            bucket.set(f"k{number}", b"v")
        uuid = bucket.failover_log(0)[0][0]
        with bucket.batches({0: kind(0, uuid, 2, 1, 5)}, until={0: 3}) as batches:
            assert [entry for batch in batches for entry in batch.records["seqno"].to_pylist()] == seqnos


def test_without_a_window_none_is_asked_for():
    assert "connection_buffer_size" not in dict(opening(DrainOptions(window_bytes=0)).optional)


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({}, OpenFlag.PRODUCER),
        ({"xattrs": True}, OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS),
        ({"no_value": True}, OpenFlag.PRODUCER | OpenFlag.NO_VALUE),
    ],
)
def test_options_become_flags(options: dict[str, bool], flags: OpenFlag):
    assert opening(DrainOptions(**options)).flags == flags


@pytest.mark.parametrize(
    ("accepted", "seconds"),
    [
        ({"enable_noop", "set_noop_interval"}, 40.0),
        ({"enable_noop"}, SERVER_IDLE_SECONDS),
        ({"set_noop_interval"}, None),
        (set(), None),
    ],
)
def test_a_node_may_be_silent_for_two_of_the_intervals_it_agreed_to(accepted: set[str], seconds: float | None):
    assert silence_seconds(frozenset(accepted), 20.0) == seconds


def test_a_task_runs_until_it_waits_and_says_whether_it_wants_to_go_on():
    waits = Ready((), 7.0)

    def work():
        yield AGAIN
        found = yield Resolve("host", 1)
        assert found == ["address"]
        yield waits
        raise ConnectionLost("host:1", "gone")

    def stepped():
        """Return the waits that a step asks of its driver, and its result."""
        try:
            asked = next(steps := task.step())
            steps.send({Resolve("host", 1): ["address"]}[asked])
        except StopIteration as stop:
            return stop.value

    task = Task(work())
    assert stepped() is True and task.wait is AGAIN
    assert stepped() is False and task.wait is waits
    with pytest.raises(ConnectionLost, match="host:1: gone"):
        stepped()


def test_a_name_whose_answer_never_came_is_looked_up_again():
    """The caller was cancelled while it was looked up; the task itself goes on."""

    def work():
        found = yield Resolve("host", 1)
        assert found == ["address"]
        yield Ready((), 7.0)

    task = Task(work())
    for _ in range(2):
        step = task.step()
        assert next(step) == Resolve("host", 1)
        step.close()
    step = task.step()
    next(step)
    with pytest.raises(StopIteration):
        step.send(["address"])
    assert task.wait == Ready((), 7.0)
