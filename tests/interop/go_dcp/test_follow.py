"""go-dcp follows a collection and keeps its place in the bucket itself; see README.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headwater import testing
from headwater.testing.node import Node
from tests.interop import observed
from tests.interop.follower import Follower, named
from tests.interop.observed import DEFAULT
from tests.interop.story import THROUGH_FAILOVER, follow_through_failover, manage
from tests.interop.toolchains import GO, go_program, needs, pinned

HERE = Path(__file__).parent
VERSION = pinned(HERE, "github.com/Trendyol/go-dcp")
pytestmark = [pytest.mark.interop, pytest.mark.battery, needs(GO)]
CHECKPOINT = "_connector:cbgo:interop:checkpoint:"
NUMBER = 1000


def checkpoints(node: Node) -> dict[int, Any]:
    """The checkpoint that go-dcp wrote for each vbucket, as the node's own streams show it.

    A document that it has made and not written to yet has no attributes.
    """
    found = observed.documents(node)
    kept = {key: each for (where, key), each in found.items() if where == DEFAULT and key.startswith(CHECKPOINT)}
    written = {key: each.attributes["cbgo"] for key, each in kept.items() if each.attributes}
    return {int(key.rpartition(":")[2]): told["checkpoint"] for key, told in written.items()}


def stored(node: Node) -> dict[str, bytes]:
    """The documents of the collection, by name."""
    numbers = {name: number for number, name in observed.collections(node).items()}
    found = observed.documents(node).items()
    return {named(numbers[where], key): each.body for (where, key), each in found if where == "shop.fruit"}


def newest(client: Follower) -> dict[int, int]:
    """The seqno of the last change of each vbucket that the client was told."""
    return {vbucket: history[-1][0] for vbucket, history in client.histories.items() if history}


def is_past(written: dict[int, Any], seen: dict[int, int]) -> bool:
    """Whether all that was seen is behind the checkpoints."""
    return all(vbucket in written and written[vbucket]["seqno"] >= seqno for vbucket, seqno in seen.items())


@pytest.mark.program("go-dcp", VERSION, "a collection, its checkpoints in the bucket, a crash")
def test_go_dcp_goes_on_from_the_checkpoints_that_it_keeps_in_the_bucket(
    tmp_path: Path, compared: Callable[[int], None]
) -> None:
    program = go_program(HERE)
    with testing.node(vbuckets=64) as node:
        manage(node, "create", "shop.fruit")
        observed.put(node, "shop.fruit", {f"fruit-{n}": b"%d" % n for n in range(NUMBER)})
        observed.put(node, DEFAULT, {f"other-{n}": b"%d" % n for n in range(NUMBER)})
        command = [program, str(node.port), "shop", "fruit"]
        with Follower(command, tmp_path) as client:
            client.follow_until(lambda: client.documents() == stored(node))
            seen = newest(client)
            # It may be further: its checkpoints are changes of other collections, past which it is led.
            client.follow_until(lambda: is_past(checkpoints(node), seen), poll=True)
            client.kill()
        node.kill()
        node.restart()
        observed.put(node, "shop.fruit", {f"more-{n}": b"%d" % n for n in range(10)})
        with Follower(command, tmp_path) as client:
            client.follow_until(lambda: client.counts["mutation"] >= 10)
            told = client.documents()
        assert sorted(name.rpartition(":")[2] for name in told) == sorted(f"more-{n}" for n in range(10))
        assert client.counts["mutation"] == 10
        compared(NUMBER + 10 + len(checkpoints(node)))


@pytest.mark.program("go-dcp", VERSION, f"{THROUGH_FAILOVER}, by itself")
def test_go_dcp_finds_the_new_owners_of_a_dead_nodes_vbuckets(tmp_path: Path, compared: Callable[[int], None]) -> None:
    binary = go_program(HERE)

    def program(port: int) -> Sequence[str]:
        return [binary, str(port), "_default", "_default"]

    compared(follow_through_failover(program, tmp_path))
