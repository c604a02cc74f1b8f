"""Random messages are legal, of the class asked for, and pieces of a stream make the stream."""

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from headwater.testing.strategies import any_class, cut, frames, message_of
from headwater.wire import dcp, tap
from headwater.wire.header import Frame


@given(message_of(tap.Mutation))
def test_a_message_is_of_its_class_and_can_be_sent(message: tap.Mutation) -> None:
    assert type(message) is tap.Mutation
    assert tap.Mutation.decode(message.encode()) == message


@pytest.mark.parametrize("missing", [True, False])
@pytest.mark.parametrize("name", ["backfill_age", "vbuckets", "checkpoints"])
def test_optional_fields_come_and_go(name: str, missing: bool) -> None:
    def is_wanted(message: tap.Connect) -> bool:
        return (getattr(message, name) is None) is missing

    looking = settings(max_examples=10_000, phases=[Phase.generate])  # any will do, not the smallest
    assert is_wanted(find(message_of(tap.Connect), is_wanted, settings=looking))


@given(frames())
def test_any_frame_survives_being_written_and_read(frame: Frame) -> None:
    assert Frame.decode(frame.encode()).encode() == frame.encode()


@given(st.binary(max_size=50), st.lists(st.integers(0, 1000), max_size=6))
def test_pieces_make_the_whole(data: bytes, places: list[int]) -> None:
    assert b"".join(cut(data, places)) == data


def test_every_family_has_its_classes() -> None:
    assert {dcp.Mutation, tap.Mutation} <= set(any_class())
    assert len(any_class()) == len(set(any_class()))
