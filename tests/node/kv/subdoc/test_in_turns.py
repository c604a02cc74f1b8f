"""Edits of a large body path by path: which are long, what comes of them, and that each place is given back."""

from __future__ import annotations

import asyncio

import pytest

from headwater.node.kv.subdoc import in_turns
from headwater.node.kv.subdoc.in_turns import LONG_BYTES, EditedBody
from headwater.node.process.run_queue import LARGE_AT_ONCE, RunQueue
from headwater.wire.opcodes import Opcode
from headwater.wire.subdoc import MutationSpec

COUNTER = (Opcode.SUBDOC_COUNTER, 0, b"n", b"1")
ATTRIBUTE = (Opcode.SUBDOC_DICT_UPSERT, 4, b"a", b"1")
FROM_ATTRIBUTE = (Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR, 4, b"a", b"")


class Notes:
    """A body that notes what is done to it, and refuses the path `refuses`."""

    def __init__(self, refuses: int = -1) -> None:
        self.body, self.done, self.refuses = b"", list[int](), refuses

    def apply_one(self, index: int, spec: MutationSpec) -> None:
        if index == self.refuses:
            raise LookupError(index)
        self.done.append(index)


def edited(body: Notes | None, specs: list[MutationSpec]) -> tuple[EditedBody, int]:
    """Edit a body; return what comes of it, and how many places are left then."""

    async def main() -> tuple[EditedBody, int]:
        queue = RunQueue(asyncio.get_running_loop())
        found = await in_turns.edit(queue, specs, 1, lambda: None if body is None else ((7, 9), body), LookupError)
        return found, queue.large._value

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("specs", "size", "long"),
    [
        ([COUNTER] * 4, LONG_BYTES // 4 + 1, True),
        ([COUNTER] * 4, LONG_BYTES // 4, False),
        ([COUNTER], 20 << 20, False),  # one path is one turn in any case
        ([ATTRIBUTE, COUNTER], 20 << 20, False),
        ([FROM_ATTRIBUTE, COUNTER, COUNTER], 20 << 20, False),
        ([(Opcode.SET, 0, b"", bytes(LONG_BYTES)), COUNTER], 0, True),
    ],
)
def test_paths_are_long_by_the_bytes_that_they_walk_through(specs: list[MutationSpec], size: int, long: bool) -> None:
    assert in_turns.is_long(specs, size) is long


def test_only_the_paths_into_the_body_are_carried_out_beforehand() -> None:
    body = Notes()
    found, places = edited(body, [ATTRIBUTE, COUNTER, COUNTER])
    assert (body.done, found.version, found.refusal, places) == ([1, 2], (7, 9), None, LARGE_AT_ONCE - 1)


def test_the_first_path_that_is_refused_ends_the_edits() -> None:
    body = Notes(refuses=1)
    found, _ = edited(body, [COUNTER] * 3)
    assert (body.done, str(found.refusal)) == ([0], "1")


def test_a_document_that_is_not_edited_here_any_more_gives_no_edits() -> None:
    assert not edited(None, [COUNTER] * 3)[0].is_of([COUNTER] * 3, None)


def test_a_place_is_given_back_once() -> None:
    found, places = edited(Notes(), [COUNTER])
    found.drop()
    found.drop()
    assert (places, found.place._value, found.edited) == (LARGE_AT_ONCE - 1, LARGE_AT_ONCE, None)
