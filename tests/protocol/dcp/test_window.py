"""The consumer's account of its flow-control window."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.protocol.dcp.window import ACK_SECONDS_MAX, ConsumerWindow


def test_nothing_is_owed_for_what_was_merely_received():
    window = ConsumerWindow(1000)
    window.receive(900)
    assert window.owed_bytes == 0 and window.due(1e9) == 0


def test_more_than_a_fifth_of_the_window_is_acknowledged_at_once():
    window = ConsumerWindow(1000)
    window.receive(200)
    window.process(10.0)
    assert window.due(10.0) == 0
    window.receive(1)
    window.process(10.0)
    assert window.due(10.0) == 201 and window.due(10.0) == 0


def test_while_more_waits_the_share_of_the_window_decides() -> None:
    window = ConsumerWindow(1000, owed_bytes_max=50)
    window.receive(200)
    window.process(0.0)
    assert window.due(0.0, more_waits=True) == 0
    window.receive(1)
    window.process(0.0)
    assert window.due(0.0, more_waits=True) == 201
    window.receive(51)
    window.process(0.0)
    assert (window.due(0.0, more_waits=True), window.due(0.0)) == (0, 51)


def test_a_little_is_acknowledged_after_five_seconds():
    window = ConsumerWindow(1000)
    window.receive(1)
    window.process(10.0)
    window.process(12.0)  # the oldest byte decides
    assert window.deadline == 10.0 + ACK_SECONDS_MAX
    assert (window.due(14.9), window.due(15.0)) == (0, 1) and window.deadline is None


def test_without_flow_control_nothing_is_ever_owed():
    window = ConsumerWindow(0)
    window.receive(10**12)
    window.process(0.0)
    assert window.due(1e9) == 0 and window.deadline is None


@given(st.lists(st.tuples(st.integers(0, 5000), st.booleans(), st.floats(0, 10))), st.integers(1, 10_000))
def test_what_is_acknowledged_never_exceeds_what_was_processed_and_all_of_it_comes_at_last(steps, size):
    window, now, told, received, processed = ConsumerWindow(size), 0.0, 0, 0, 0
    for count, done, seconds in steps:
        window.receive(count)
        received += count
        now += seconds
        if done:
            window.process(now)
            processed = received
        told += window.due(now)
        assert (told <= processed and processed - told <= size * 0.2) or window.deadline is not None
    assert told + window.due(now + ACK_SECONDS_MAX) == processed
