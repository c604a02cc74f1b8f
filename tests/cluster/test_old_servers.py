"""Moving vbuckets to and from a server of 2017, which speaks neither today's key-value side nor today's deletions."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from headwater import testing
from headwater.client.routing import Address
from headwater.cluster.admin import Endpoint, NodeAdmin
from headwater.cluster.proxied import FEATURES
from headwater.testing.node import Node
from headwater.wire.features import Feature
from headwater.wire.flags import OpenFlag
from headwater.wire.vbucket import State

from .elder import HANGS_UP, Elder
from .nodes import command

VBUCKETS = 4
DOCUMENTS, DELETED = 300, 100
SECONDS = 240
Result = TypeVar("Result")


@contextmanager
def pair() -> Iterator[tuple[Node, Node]]:
    """A node with documents and deletions, and one without vbuckets."""
    with ExitStack() as stack:
        full = stack.enter_context(testing.node(vbuckets=VBUCKETS))
        empty = stack.enter_context(testing.node(vbuckets=VBUCKETS, vbucket_state="none"))
        with full.client() as bucket:
            bucket.set_many((f"k{number}", b"v%d" % number) for number in range(DOCUMENTS))
            for number in range(DELETED):
                bucket.delete(f"k{number}")
        yield full, empty


def contents(node: Node, vbuckets: list[int] | None = None) -> set[tuple[object, ...]]:
    """All that a node streams: kind, vbucket, seqno, revision, CAS, key and value."""
    with node.client() as bucket, bucket.changes(vbuckets=vbuckets, until="now") as changes:
        return {
            (
                type(change).__name__,
                change.vbucket,
                change.seqno,
                change.rev_seqno,
                change.cas,
                change.key,
                change.value,
            )
            for change in changes
            if hasattr(change, "key")
        }


def itself(node: Node) -> Endpoint:
    """A node as it is."""
    return Endpoint(Address(node.host, node.port))


def asked(server: Endpoint, work: Callable[[NodeAdmin], Coroutine[Any, Any, Result]]) -> Result:
    """Return the result of `work`, given an administrator."""

    async def run() -> Result:
        async with await NodeAdmin.connect(server) as admin:
            return await work(admin)

    return asyncio.run(run())


# --------------------------------------------------------------------------- moving


def test_a_takeover_to_an_old_server_ends_and_takes_the_deletions_with_it() -> None:
    with pair() as (full, empty), Elder(empty) as old:
        before = contents(full)
        status, said, problem = command("move", "--from", full.address, "--to", old.address, "--takeover")
        assert (status, problem) == (0, "") and said.startswith(f"{VBUCKETS} vbuckets moved")
        assert contents(empty) == before and len(before) == DOCUMENTS
        assert not any(opcode.startswith("DCP") for opcode, _ in old.refused)


def test_a_takeover_from_an_old_server_brings_everything() -> None:
    with pair() as (full, empty), Elder(full) as old:
        before = contents(full)
        status, said, problem = command("move", "--from", old.address, "--to", empty.address, "--takeover")
        assert (status, problem) == (0, "") and said.startswith(f"{VBUCKETS} vbuckets moved")
        assert contents(empty) == before
        assert HANGS_UP not in [how for _, how in old.refused]


def test_a_node_follows_an_old_server_until_it_is_level() -> None:
    with pair() as (full, empty), Elder(full) as old:
        status, said, problem = command("replicate", old.address, empty.address, "--once")
        assert (status, problem) == (0, "") and said.startswith(f"{VBUCKETS} vbuckets level, {DOCUMENTS + DELETED} ")
        asked(itself(empty), lambda admin: admin.set_state(0, State.ACTIVE))
        assert {content for content in contents(full) if content[1] == 0} == contents(empty, [0])


def test_a_target_that_refuses_delete_times_though_it_looks_new_is_asked_without_them_once() -> None:
    with pair() as (full, empty), Elder(empty, grants=(*FEATURES, Feature.SELECT_BUCKET)) as old:
        before = contents(full)
        status, _, problem = command("move", "--from", full.address, "--to", old.address, "--takeover")
        assert (status, problem) == (0, "") and contents(empty) == before
        assert old.refused.count(("DCP_DELETION", "EINVAL")) == 1
        with_times = [bool(flags & OpenFlag.INCLUDE_DELETE_TIMES) for flags in old.opens]
        assert with_times == sorted(with_times, reverse=True) and not with_times[-1]


KNOWN_IN_5_0 = OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS | OpenFlag.NO_VALUE


def test_a_server_that_refuses_flags_it_does_not_know_is_followed_and_moved_from_and_to_without_them() -> None:
    with pair() as (full, empty), Elder(full, knows_flags=KNOWN_IN_5_0) as old:
        status, said, problem = command("replicate", old.address, empty.address, "--once", "--vbuckets", "0-1")
        assert (status, problem) == (0, "") and said.startswith("2 vbuckets level")
        status, said, problem = command("move", "--from", old.address, "--to", empty.address, "--takeover")
        assert (status, problem) == (0, "") and said.startswith(f"{VBUCKETS} vbuckets moved")
        with Elder(full, knows_flags=KNOWN_IN_5_0) as back:
            status, said, problem = command("move", "--from", empty.address, "--to", back.address, "--takeover")
        assert (status, problem) == (0, "") and said.startswith(f"{VBUCKETS} vbuckets moved")


# --------------------------------------------------------------------------- giving up


def refused_changes(old: Elder) -> int:
    return sum(opcode in {"DCP_MUTATION", "DCP_DELETION"} for opcode, _ in old.refused)


def test_a_target_that_refuses_every_change_ends_the_move_when_patience_does_and_is_named() -> None:
    with pair() as (full, empty), Elder(empty, takes_changes=False) as old:
        words = ("--takeover", "--patience", "3")
        status, _, problem = command("move", "--from", full.address, "--to", old.address, *words)
        assert status == 1
        assert f"{old.address}: take a DCP_" in problem and "EINVAL" in problem and problem.count("\n") == 1
        assert set(asked(itself(full), lambda admin: admin.states()).values()) == {State.ACTIVE}


def test_a_move_that_is_stopped_while_it_tries_again_leaves_no_traceback() -> None:
    with pair() as (full, empty), Elder(empty, takes_changes=False) as old:
        words = [sys.executable, "-m", "headwater", "move", "--from", full.address, "--to", old.address, "--takeover"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            give_up = time.monotonic() + SECONDS
            while refused_changes(old) < 2 and time.monotonic() < give_up:
                time.sleep(0.01)
            assert refused_changes(old) >= 2
            running.send_signal(signal.SIGTERM)
            said, problems = running.communicate(timeout=SECONDS)
    assert "Traceback" not in problems and "never retrieved" not in problems and said == ""
    assert running.returncode == 128 + signal.SIGTERM


# --------------------------------------------------------------------------- asking


def test_an_old_server_is_asked_in_the_forms_of_its_time() -> None:
    with testing.node(vbuckets=VBUCKETS) as node, Elder(node) as old:

        async def work(admin: NodeAdmin) -> tuple[Any, ...]:
            await admin.set_state(1, State.REPLICA)
            return await admin.states(), await admin.seqnos(), await admin.failover_log(1), await admin.failover_log(2)

        told = asked(old.endpoint, work)
        assert told == asked(itself(node), work)
        assert told[0][1] is State.REPLICA and set(told[1]) == set(range(VBUCKETS))
        assert old.refused == [("SET_VBUCKET", "EINVAL")]


def test_an_administrator_selects_the_bucket_of_an_old_server_before_anything_is_asked() -> None:
    with testing.node(vbuckets=VBUCKETS) as node, Elder(node) as old:
        administrator = Endpoint(old.endpoint.address, "default", "Administrator", "password")
        assert set(asked(administrator, lambda admin: admin.states())) == set(range(VBUCKETS))
        assert old.refused == []
