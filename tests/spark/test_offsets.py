import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import OptionError
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.position import Position
from headwater.spark.offsets import U64_MAX, Offset, parse_positions

U64 = st.integers(0, U64_MAX)


@st.composite
def positions(draw: st.DrawFn, vbucket: int) -> Position:
    start, seqno, end = sorted(draw(st.tuples(U64, U64, U64)))
    return Position(vbucket, draw(U64), seqno, start, end)


@st.composite
def offsets(draw: st.DrawFn) -> Offset:
    vbuckets = draw(st.lists(st.integers(0, 1023), unique=True, max_size=8))
    places = {vbucket: draw(positions(vbucket)) for vbucket in vbuckets}
    rollbacks = frozenset(draw(st.sets(st.sampled_from(vbuckets)) if vbuckets else st.just(set())))
    ids = st.lists(st.integers(8, 2**32 - 1), unique=True, min_size=1, max_size=3)
    chosen = st.builds(Coverage, st.integers(0, U64_MAX), collections=ids.map(lambda found: tuple(sorted(found))))
    return Offset(places, rollbacks, coverage=draw(st.none() | chosen))


def through_spark(offset: Offset) -> dict[str, Any]:
    """Spark writes json.dumps to the checkpoint and hands json.loads of it back."""
    read: dict[str, Any] = json.loads(json.dumps(offset.to_json()))
    return read


def test_an_offset_is_written_like_this() -> None:
    places = {7: Position(7, 0xBEEF, 9, 3, 11), 0: Position(0, 0xA1B2C3D4E5F607, 120, 120, 120)}
    assert json.dumps(Offset(places, frozenset({7})).to_json()) == (
        '{"v": 1, "vb": {"0": ["00a1b2c3d4e5f607", 120], "7": ["000000000000beef", 9, 3, 11]}, "rollback": [7]}'
    )


@given(offsets())
def test_an_offset_survives_its_way_through_spark(offset: Offset) -> None:
    again = Offset.from_json(through_spark(offset))
    untouched = {vb for vb, place in offset.positions.items() if place.snapshot_end == 0 and vb not in offset.rollbacks}
    assert again.positions == {vb: place for vb, place in offset.positions.items() if vb not in untouched}
    assert again.rollbacks == offset.rollbacks


@given(offsets(), st.randoms(use_true_random=False))
def test_one_place_has_one_text_however_it_was_put_together(offset: Offset, random: Any) -> None:
    shuffled = list(offset.positions.items())
    random.shuffle(shuffled)
    text = json.dumps(offset.to_json())
    again = Offset(dict(shuffled), frozenset(sorted(offset.rollbacks, reverse=True)), coverage=offset.coverage)
    assert json.dumps(again.to_json()) == text
    assert json.dumps(Offset.from_json(through_spark(offset)).to_json()) == text


def test_vbuckets_are_ordered_as_numbers_not_as_texts() -> None:
    places = {vb: Position(vb, 1, 5, 5, 5) for vb in (1023, 2, 10, 100)}
    assert list(Offset(places).to_json()["vb"]) == ["2", "10", "100", "1023"]


def test_integers_are_exact_up_to_the_last_of_64_bits() -> None:
    place = Position(0, U64_MAX, U64_MAX, U64_MAX - 1, U64_MAX)
    written = through_spark(Offset({0: place}))
    assert written["vb"]["0"] == ["f" * 16, 18446744073709551615, 18446744073709551614, 18446744073709551615]
    assert Offset.from_json(written).position(0) == place


def test_an_untouched_vbucket_is_left_out_and_read_as_the_beginning() -> None:
    offset = Offset({3: Position(3, 0xA), 4: Position(4, 0xA, 1, 1, 1)})
    assert list(offset.to_json()["vb"]) == ["4"]
    assert Offset.from_json(through_spark(offset)).position(3) == Position.beginning(3)


def test_a_vbucket_rolled_back_to_nothing_keeps_the_name_of_its_new_history() -> None:
    offset = Offset({3: Position(3, 0xA)}, frozenset({3}))
    assert offset.to_json() == {"v": 1, "vb": {"3": ["000000000000000a", 0]}, "rollback": [3]}


def test_latest_is_a_wish_and_always_the_same_text() -> None:
    assert Offset(latest=True).to_json() == {"v": 1, "latest": True}
    assert Offset.from_json({"v": 1, "latest": True}).latest


def test_users_may_write_a_bare_seqno() -> None:
    assert parse_positions("startingOffsets", {"5": 120}) == {5: Position(5, 0, 120, 120, 120)}


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        ({"x": 1}, '"x" is not a vbucket number'),
        ({"-1": 1}, '"-1" is not a vbucket number'),
        ({"007": 1}, '"007" is not a vbucket number'),
        ({"70000": 1}, '"70000" is not a vbucket number'),
        ({"0": -1}, "0 to 2^64-1"),
        ({"0": 2**64}, "0 to 2^64-1"),
        ({"0": 1.5}, "0 to 2^64-1"),
        ({"0": True}, "0 to 2^64-1"),
        ({"0": ["xyz", 1]}, "16 lower-case hex digits"),
        ({"0": ["a" * 16, 1, 2]}, "a position of vbucket 0"),
        ({"0": ["a" * 16, 1, 2, 3]}, "outside its snapshot"),
        ([], "a JSON object"),
    ],
)
def test_what_is_no_position_is_refused_by_name(entries: object, complaint: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse_positions("startingOffsets", entries)
    assert complaint in str(refused.value)
    assert 'option "startingOffsets"' in str(refused.value)


def test_an_offset_of_another_version_is_refused() -> None:
    with pytest.raises(OptionError, match="version 1"):
        Offset.from_json({"v": 2, "vb": {}})
