"""Lines and the data behind them, however they are cut, and no byte waited for that is not wanted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.protocol.text.line import KEYS_LINE_BYTES_MAX, LINE_BYTES_MAX, CommandReader, TextCommand
from headwater.wire.header import VALUE_BYTES_MAX


def read(data: bytes) -> TextCommand | None:
    return CommandReader().read(memoryview(data))


def test_a_line_is_words_between_blanks_and_ends_with_a_line_feed() -> None:
    assert read(b"get  a b \r\nrest") == TextCommand((b"get", b"a", b"b"), 11)
    assert read(b"get a\nrest") == TextCommand((b"get", b"a"), 6)
    assert read(b"\r\n") == TextCommand((), 2)
    assert read(b"get a\r") is None


@pytest.mark.parametrize("line", [b"set k 0 0 5", b"cas k 0 0 5 17 noreply", b"ms k 5 T0"])
def test_data_is_as_long_as_its_line_says_whatever_is_in_it(line: bytes) -> None:
    asked = read(line + b"\r\na\r\nbc\r\nget k\r\n")
    assert asked == TextCommand(tuple(line.split()), len(line) + 9, b"a\r\nbc")
    assert read(line + b"\r\na\r\nbc\r") is None


def test_data_that_does_not_end_with_its_line_is_a_bad_chunk() -> None:
    asked = read(b"set k 0 0 2\r\nhixx\r\n")
    assert asked is not None and asked.problem == b"CLIENT_ERROR bad data chunk\r\n" and asked.size == 17


@pytest.mark.parametrize("claim", [b"-1", b"x", b"2147483647", b"9" * 30, b"", b"\xb2"])
def test_what_is_no_length_takes_no_data(claim: bytes) -> None:
    line = b"set k 0 0 " + claim + b"\r\n"
    asked = read(line + b"mn\r\n")
    assert asked is not None and asked.size == len(line) and asked.block is None


def test_data_that_is_too_large_is_refused_before_it_comes_and_swallowed() -> None:
    line = b"set k 0 0 %d\r\n" % (VALUE_BYTES_MAX + 1)
    asked = read(line)
    assert asked is not None and asked.problem == b"SERVER_ERROR object too large for cache\r\n"
    assert (asked.size, asked.swallows) == (len(line), VALUE_BYTES_MAX + 3)
    assert read(b"set k 0 0 %d\r\n" % VALUE_BYTES_MAX) is None, "the largest is waited for"


def test_a_line_without_end_is_too_long_and_nothing_can_follow() -> None:
    assert read(b"x" * (LINE_BYTES_MAX - 1)) is None
    asked = read(b"x" * LINE_BYTES_MAX)
    assert asked is not None and asked.closes and asked.problem == b"CLIENT_ERROR line too long\r\n"
    assert read(b"x" * (LINE_BYTES_MAX - 1) + b"\n") is not None


@pytest.mark.parametrize("name", [b"get", b"gets", b"gat", b"gats"])
def test_a_line_that_asks_for_many_keys_may_be_longer_but_not_without_end(name: bytes) -> None:
    line = name + b" key" * 5000 + b"\r\n"
    asked = read(line)
    assert asked is not None and len(asked.words) == 5001 and not asked.problem
    endless = read(name + b" " + b"k" * KEYS_LINE_BYTES_MAX)
    assert endless is not None and endless.closes


def test_what_is_wanted_is_told_by_the_line_once_it_is_there() -> None:
    reader = CommandReader()
    assert reader.wanted(memoryview(b"set k 0 0 ")) == 11, "one more than there are"
    assert reader.wanted(memoryview(b"set k 0 0 5\r\nab")) == 20
    reader.begin()
    assert reader.wanted(memoryview(b"set k 0 0 99999999\r\nab")) == 20, "nothing of what is swallowed"
    reader.begin()
    assert reader.wanted(memoryview(b"get k\r\n")) == 7
    reader.begin()
    assert reader.wanted(memoryview(b"x" * LINE_BYTES_MAX)) == 0, "that is judged at once"


TALK = b"set a 0 0 3\r\na\nb\r\nget " + b"key " * 700 + b"\r\n\r\ncas a 1 2 2 3\r\nxx\r\nset b 0 0 2\r\nlong\r\nmn\n"


@given(st.lists(st.integers(1, len(TALK) - 1), max_size=8))
def test_cut_anywhere_the_commands_are_the_same(cuts: list[int]) -> None:
    assert commands(sorted({0, *cuts, len(TALK)})) == commands([0, len(TALK)])


def test_byte_by_byte_the_commands_are_the_same() -> None:
    found = commands(list(range(len(TALK) + 1)))
    assert found == commands([0, len(TALK)]) and len(found) == 7


def commands(ends: list[int]) -> list[TextCommand]:
    """The commands of the talk, when the reader sees what is not taken yet after each of these ends."""
    reader, found, taken = CommandReader(), [], 0
    for end in ends:
        while taken < end and (asked := reader.read(memoryview(TALK)[taken:end])) is not None:
            found.append(asked)
            taken += asked.size
            assert reader.wanted(memoryview(TALK)[taken:end]) >= 0, "to ask changes nothing"
    assert taken == len(TALK)
    return found
