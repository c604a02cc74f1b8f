"""The signature of a kernel becomes a code for machine.c, and the Python of a trampoline."""

from __future__ import annotations

import pytest
from numba import types

from native import trampolines
from native.trampolines import SLOTS_MAX, Unsupported, signature

BYTES = types.Array(types.uint8, 1, "C")
READ = types.Array(types.uint8, 1, "C", readonly=True)
TABLE = types.Array(types.uint64, 2, "C")


def test_numbers_take_one_slot_each_and_come_back_in_the_first() -> None:
    found = signature("scan.add", [("a", types.int64), ("b", types.uint32)], types.uint64)
    assert found.code == "ii:u"
    assert found.source == (
        "def trampoline(slots):\n"
        "    found = kernel(np.int64(slots[0]), np.uint32(slots[1]))\n"
        "    slots[0] = np.int64(found)\n"
    )


def test_an_array_takes_its_address_and_its_length_in_each_dimension() -> None:
    found = signature("index.lookup", [("table", TABLE), ("key", READ)], types.none)
    assert found.code == "Q2B1r:"
    assert "carray(pointer(slots[0]), (slots[1], slots[2], ), np.uint64)" in found.source
    assert "carray(pointer(slots[3]), (slots[4], ), np.uint8)" in found.source


def test_what_a_kernel_only_reads_may_be_an_array_over_bytes_whatever_it_was_prepared_for() -> None:
    assert signature("tap.reshape", [("frames", BYTES), ("out", BYTES)], types.none).code == "B1rB1:"


def test_tuples_are_taken_and_given() -> None:
    arguments = [("columns", types.Tuple([TABLE, types.boolean]))]
    found = signature("compact.survivors", arguments, types.Tuple([types.int64, types.boolean]))
    assert found.code == "(Q2b):(ib)"
    assert "slots[1] = np.int64(found[1])" in found.source


@pytest.mark.parametrize(
    "kind", [types.float64, types.Array(types.float64, 1, "C"), types.Array(types.uint8, 1, "A"), types.unicode_type]
)
def test_other_types_are_refused_by_name(kind: object) -> None:
    with pytest.raises(Unsupported, match=str(kind).replace("(", r"\(").replace(")", r"\)")):
        signature("scan.other", [("it", kind)], types.none)


def test_a_kernel_of_too_many_arguments_is_refused() -> None:
    with pytest.raises(Unsupported, match="more than 96 slots"):
        signature("scan.wide", [(f"a{at}", types.int64) for at in range(SLOTS_MAX + 1)], types.none)


def test_of_two_ways_to_call_a_kernel_that_stands_which_takes_bytes() -> None:
    class Overload:
        signature = types.none(BYTES)

    class Dispatcher:
        @staticmethod
        def py_func(words: object) -> None:
            """Stand for a kernel of one argument."""

        signatures = ((BYTES,), (READ,))
        overloads = {(BYTES,): Overload(), (READ,): Overload()}  # noqa: RUF012 - of a test

    ((found, _),) = trampolines.signatures_of([("headwater.kernels.json.valid", Dispatcher())])
    assert (found.name, found.code) == ("json.valid", "B1r:")
