"""The TAP seed's own examples, all as "node1", played one after the other to one live node that keeps sessions.

"The packet's key may specify a unique client identifier that can be used to allow reconnects": what a name comes back
for may be something else than what it left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from headwater.testing import Node, node
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.tap import Mutation, Opaque, OpaqueCode
from tests.conformance.seeds import SECONDS_MAX, VECTORS, Line

VBUCKETS = 8
LISTED = (1, 2, 5)
ALL = tuple(range(VBUCKETS))
EXAMPLES = {each["name"]: bytes.fromhex(each["hex"]) for each in VECTORS}
BASE, DUMP, LIST = "tap_connect_base", "tap_connect_dump_resolved", "tap_connect_vblist_resolved"
FUTURE, FUTURE_WIDE = "tap_connect_backfill_resolved", "tap_connect_backfill_listing"


class Player:
    """Says examples to the node; `keys` is what the node has. Connections stay open unless `closes`."""

    def __init__(self, at: Node, *, closes: bool) -> None:
        self.at, self.closes = at, closes
        self.keys: set[bytes] = set()
        self.lines = ExitStack()
        self._writer = self.lines.enter_context(Line(at.port))
        self._written = 0

    def write(self, vbuckets: tuple[int, ...] = ALL) -> set[bytes]:
        """A new document in each of the vbuckets; their keys."""
        self._written += 1
        keys = {b"%d-%d" % (self._written, vb) for vb in vbuckets}
        for vb in vbuckets:
            key = b"%d-%d" % (self._written, vb)
            self._writer.done(Frame(0x80, Opcode.SET, key, bytes(8), b"v", vbucket=vb))
        self.keys |= keys
        return keys

    def live(self, example: str, vbuckets: tuple[int, ...] = ALL) -> set[bytes]:
        """Return the messages of a session without an end before those of what is written once it is there."""
        before = self._stats().get("eq_tapq:node1:reconnects")
        line = self._say(example)
        self._until(lambda stats: stats.get("eq_tapq:node1:reconnects", before) != before)
        marks, found = self.write(vbuckets), set[bytes]()
        while not marks <= found:
            frame = line.frame()
            if frame.opcode == Opcode.TAP_MUTATION:
                found.add(Mutation.decode(frame).key)
        self._leave(line)
        return found - marks

    def dump(self) -> set[bytes]:
        """Return the messages of a dump until the node hangs up; each vbucket is opened and closed."""
        line, found, codes = self._say(DUMP), set[bytes](), list[int | None]()
        while header := line.file.read(24):
            frame = Frame.decode(header + line.file.read(int.from_bytes(header[8:12])))
            if frame.opcode == Opcode.TAP_OPAQUE:
                codes.append(Opaque.decode(frame).code)
            else:
                found.add(Mutation.decode(frame).key)
        assert sorted(codes) == [OpaqueCode.INITIAL_VBUCKET_STREAM] * VBUCKETS + [OpaqueCode.CLOSE_BACKFILL] * VBUCKETS  # type: ignore[type-var]
        self._leave(line)
        return found

    def _say(self, example: str) -> Line:
        line = self.lines.enter_context(Line(self.at.port))
        line.socket.settimeout(SECONDS_MAX)
        line.socket.sendall(EXAMPLES[example])
        return line

    def _leave(self, line: Line) -> None:
        if self.closes:
            line.__exit__()
            self._until(lambda stats: stats.get("eq_tapq:node1:connected", "false") == "false")

    def _until(self, holds: Callable[[dict[str, str]], bool]) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not holds(stats := self._stats()):
            assert time.monotonic() < deadline, stats
            time.sleep(0.02)

    def _stats(self) -> dict[str, str]:
        with self.at.client() as reader:
            return dict(reader.stats("tap"))


@pytest.fixture(params=[True, False], ids=["which left", "which is still there"])
def player(request: pytest.FixtureRequest) -> Iterator[Player]:
    with node(vbuckets=VBUCKETS, tap_keep_alive_seconds=600) as kept:
        made = Player(kept, closes=request.param)
        with made.lines:
            made.write()
            yield made


def of_list(keys: set[bytes]) -> set[bytes]:
    return {key for key in keys if int(key.partition(b"-")[2]) in LISTED}


def test_the_examples_as_they_stand_in_the_text(player: Player) -> None:
    there = set(player.keys)
    assert player.live(BASE) == there
    away = player.write((3,)) if player.closes else set()
    assert player.live(FUTURE) == away  # the session was kept: a change of the meantime is one of the future
    there = set(player.keys)
    assert player.dump() == there
    assert player.live(LIST, LISTED) == of_list(there)


def test_the_examples_the_other_way_round(player: Player) -> None:
    there = set(player.keys)
    assert player.live(LIST, LISTED) == of_list(there)
    assert player.dump() == player.keys
    assert player.live(FUTURE_WIDE) == set()
    assert player.live(BASE) == set()  # "without BACKFILL the old criterion stays" (tap.md 1.2)


def test_a_dump_again_and_again(player: Player) -> None:
    for _ in range(3):
        assert player.dump() == player.keys
    there = set(player.keys)
    assert player.live(BASE) == there
    assert player.dump() == player.keys


def test_a_list_that_is_left_out_again_brings_what_the_other_vbuckets_have(player: Player) -> None:
    there = set(player.keys)
    assert player.live(LIST, LISTED) == of_list(there)
    assert player.live(BASE) == there - of_list(there)
