"""Order and gates of what leaves."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.node.connections.outbox import Outbox


def test_an_item_behind_its_gate_holds_back_all_that_follow() -> None:
    box = Outbox()
    box.push(b"now", 0)
    box.push(b"later", 2)
    box.push(b"behind", 0)
    assert bytes(box.ready(1, 100)) == b"now"
    box.sent(3)
    assert box.ready(1, 100) == b"" and box.gate == 2
    assert bytes(box.ready(2, 100)) == b"laterbehind"


def test_a_part_that_left_is_not_sent_again() -> None:
    box = Outbox()
    box.push(b"abcdef", 0)
    box.sent(2)
    assert bytes(box.ready(0, 100)) == b"cdef" and box.queued_bytes == 4


def test_what_was_kept_for_a_batch_of_one_bucket_does_not_wait_for_another_buckets() -> None:
    box = Outbox()
    box.push(b"abc", 7)
    box.push(b"def", 8)
    box.sent(1)
    box.ungate()
    box.push(b"ghi", 2)
    assert bytes(box.ready(1, 100)) == b"bc" and box.queued_bytes == 8
    box.sent(2)
    assert bytes(box.ready(1, 100)) == b"def"
    assert bytes(box.ready(2, 100)) == b"defghi"


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=9), st.integers(0, 4)), max_size=12), st.data())
def test_everything_leaves_in_order_and_nothing_before_its_batch(
    items: list[tuple[bytes, int]], data: st.DataObject
) -> None:
    box, left = Outbox(), b""
    for item, gate in items:
        box.push(item, gate)
    whole = b"".join(item for item, _ in items)
    for durable in range(5):
        while chunk := bytes(box.ready(durable, data.draw(st.integers(1, 20)))):
            count = data.draw(st.integers(1, len(chunk)))
            left += chunk[:count]
            box.sent(count)
        allowed = 0
        for item, gate in items:
            if gate > durable:
                break
            allowed += len(item)
        assert left == whole[:allowed]
    assert box.empty and box.queued_bytes == 0
