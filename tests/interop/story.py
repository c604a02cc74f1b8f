"""The events that every DCP client must live through with a node: one story, told with Java's client and with Go's.

1024 vbuckets and a flow-control window a fraction of the content; deletions and expirations; live changes; a node
killed with SIGKILL; and a node that comes back as a replica would which had not received the last changes, so that the
client must roll back. At each step the client must hold exactly what was stored.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.nodes import high_seqno, until
from headwater import testing
from headwater.testing.node import Node
from tests.interop import observed
from tests.interop.follower import Follower, named
from tests.interop.observed import DEFAULT

WHAT = "changes through a crash and a rollback"
THROUGH_FAILOVER = "changes through a node's death, the failover, a hand-over, a restart"
EVERY_VERSION = "every version of documents, from the log and live"
HISTORIES = "every version of documents of collections with a history, the last ones of another"
WITH_COLLECTIONS = "changes of collections, made and dropped meanwhile, a crash"
VBUCKETS = 1024
WINDOW_BYTES = 256 << 10  # what both programs ask for


def follow_through_everything(program: Callable[[int], Sequence[str]], folder: Path) -> int:
    """Tell the story; `program` makes the client's command of a port. Returns how many documents it held at the end."""
    with testing.node(vbuckets=VBUCKETS, expiry_pager_seconds=1) as node:
        stored = _fill(node)
        with Follower(program(node.port), folder) as client:
            # A deletion whose mutation was deduplicated changes no document of the client: all of them are waited for
            # by their number.
            client.follow_until(lambda: client.documents() == stored and _gone(client) >= (100, 5))
            assert _gone(client) == (100, 5)
            _write(node, stored, "live")
            client.follow_until(lambda: client.documents() == stored)
            node.kill()
            replica = Path(shutil.copytree(node.data, node.data.with_name("replica")))
            node.restart()
            lost = dict(stored)
            _write(node, lost, "after the crash")
            client.follow_until(lambda: client.documents() == lost)
            node.kill()
            shutil.rmtree(node.data)
            replica.rename(node.data)
            node.restart()
            _write(node, stored, "on the new branch")
            client.follow_until(lambda: client.documents() == stored)
            assert client.counts["rollback"] > 0
            return len(stored)


def follow_every_version(program: Callable[[int], Sequence[str]], folder: Path) -> int:
    """Tell the one of versions: the client asks for change_streams, and must get each write of each document, those
    of before it came and those of while it is there. Returns how many versions it got."""
    keys, rounds = 2000, 5
    with testing.node(vbuckets=64) as node:
        for number in range(rounds - 1):
            _write_all(node, keys, number)
        with Follower(program(node.port), folder) as client:
            client.follow_until(lambda: client.counts["mutation"] >= keys * (rounds - 1))
            _write_all(node, keys, rounds - 1)
            client.follow_until(lambda: client.counts["mutation"] >= keys * rounds)
            versions = [told for history in client.histories.values() for told in history]
        expected = sorted((f"document-{n}", b"%d" % number) for n in range(keys) for number in range(rounds))
        assert sorted((key, value) for _, _, key, value in versions) == expected
        assert all(history == sorted(history) for history in client.histories.values())
        return len(versions)


def follow_histories(program: Callable[[int], Sequence[str]], folder: Path) -> int:
    """Tell the one of histories: the client asks for change_streams in a bucket where one collection has a history and
    one has none, until it is given one. Returns how many versions it got.
    """
    keys, rounds = 2000, 5
    kept, plain = (8, "shop.kept"), (9, "shop.plain")
    with testing.node(vbuckets=64) as node:
        manage(node, "create", "shop.kept")
        manage(node, "create", "shop.plain", options=("--history", "off"))

        def write(number: int, *collections: tuple[int, str]) -> None:
            for _, where in collections:
                observed.put(node, where, {f"document-{n}": b"%d" % number for n in range(keys)})

        for number in range(rounds - 1):
            write(number, kept, plain)
        with Follower(program(node.port), folder) as client:
            client.follow_until(lambda: client.counts["mutation"] >= keys * rounds)
            write(rounds - 1, kept, plain)
            client.follow_until(lambda: client.counts["mutation"] >= keys * (rounds + 2))
            manage(node, "alter", "shop.plain", options=("--history", "on"))
            for number in (rounds, rounds + 1):
                write(number, plain)
            client.follow_until(lambda: client.counts["mutation"] >= keys * (rounds + 4))
            versions = [(key, value) for history in client.histories.values() for _, _, key, value in history]
            made = {line for line in client.lines if line.startswith("collection ")}
        expected = {kept: range(rounds), plain: range(rounds - 2, rounds + 2)}
        assert sorted(versions) == sorted(
            (named(collection, f"document-{n}"), b"%d" % number)
            for (collection, _), numbers in expected.items()
            for number in numbers
            for n in range(keys)
        )
        assert {each.split(" ", 2)[2] for each in made} == {"8 kept", "9 plain"}, "both are told in versions 0 and 1"
        return len(versions)


def _write_all(node: Node, keys: int, number: int) -> None:
    with node.client() as bucket:
        bucket.set_many((f"document-{n}", b"%d" % number) for n in range(keys))


def follow_collections(program: Callable[..., Sequence[str]], folder: Path) -> int:
    """Tell the one of collections; `program` makes the client's command of a port and the collections it is to show.

    One client follows the whole bucket and one a single collection, while collections come and go under both, and the
    node is killed; each must hold what the node's own streams hold of what it is shown. Returns how many documents.
    """
    with testing.node(vbuckets=64) as node:
        manage(node, "create", "shop.fruit", "shop.tools")
        for where in (DEFAULT, "shop.fruit", "shop.tools"):
            observed.put(node, where, {f"{where}-{n}": b"%s %d" % (where.encode(), n) for n in range(1000)})
        with (
            Follower(program(node.port), _made(folder / "all")) as bucket,
            Follower(program(node.port, "shop.fruit"), _made(folder / "fruit")) as fruit,
        ):
            _hold(node, bucket, fruit)
            manage(node, "create", "shop.later")
            observed.put(node, "shop.later", {"one": b"1"})
            observed.put(node, "shop.fruit", {"shop.fruit-7": b"changed", "shop.fruit-new": b"new"})
            _hold(node, bucket, fruit)
            node.kill()
            node.restart()
            observed.put(node, "shop.fruit", {"after the crash": b"new"})
            _hold(node, bucket, fruit)
            # A name that comes again is another collection, with nothing of the first.
            manage(node, "drop", "shop.tools")
            manage(node, "create", "shop.tools")
            observed.put(node, "shop.tools", {"again": b"new"})
            _hold(node, bucket, fruit)
            assert _made_known(fruit) == {"fruit"} and _made_known(bucket) == {"fruit", "tools", "later"}
            bucket.follow_until(lambda: bucket.counts["dropped"] >= 64)
            return len(bucket.documents()) + len(fruit.documents())


def follow_through_failover(program: Callable[[int], Sequence[str]], folder: Path) -> int:
    """Tell the one of a cluster; `program` makes the client's command of a port. Returns how many documents it held.

    Of two nodes one is killed while the client follows both, and failed over; it joins again, gets vbuckets back by
    takeovers, and is killed and started as their owner. The client must find the new owners by itself each time.
    """
    empty = {"vbuckets": 64, "vbucket_state": "none"}
    with testing.node(**empty) as seed, testing.node(**empty) as mate:  # type: ignore[arg-type]
        operate("init", seed.address, mate.address, "--replicas", "1")
        stored = {f"document-{number}": b"%0300d" % number for number in range(3000)}
        with seed.client() as bucket:
            bucket.set_many(stored.items())
            until(lambda: _is_level(seed, mate), "each replica is level")
        with Follower(program(seed.port), folder) as client:
            client.follow_until(lambda: client.documents() == stored)
            mate.kill()
            operate("failover", seed.address, "--dead", mate.address, "--yes")
            _write_everywhere(seed, stored, "after the failover")
            client.follow_until(lambda: client.documents() == stored)
            mate.start()
            operate("rebalance", seed.address, "--add", mate.address, "--yes")
            _write_everywhere(seed, stored, "after the rebalance")
            client.follow_until(lambda: client.documents() == stored)
            mate.kill()
            mate.restart()
            _write_everywhere(seed, stored, "after the restart")
            client.follow_until(lambda: client.documents() == stored)
            return len(stored)


def operate(verb: str, *words: str) -> None:
    """Work on the cluster as an operator does."""
    command = [sys.executable, "-m", "headwater", "cluster", verb, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{verb}: {done.stdout}{done.stderr}"


def _is_level(*nodes: Node) -> bool:
    return all(high_seqno(nodes[0], vb) == high_seqno(nodes[1], vb) >= 0 for vb in range(64))


def _hold(node: Node, bucket: Follower, fruit: Follower) -> None:
    """Wait until both clients hold what the node has."""
    numbers = {name: number for number, name in observed.collections(node).items()}
    stored = {named(numbers[where], key): each.body for (where, key), each in observed.documents(node).items()}
    mine = {name: body for name, body in stored.items() if name.startswith(named(numbers["shop.fruit"], ""))}
    assert 1000 <= len(mine) < len(stored)
    bucket.follow_until(lambda: bucket.documents() == stored)
    fruit.follow_until(lambda: fruit.documents() == mine)


def _made_known(client: Follower) -> set[str]:
    return {line.split()[3] for line in client.lines if line.startswith("collection ")}


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def manage(node: Node, verb: str, *names: str, options: Sequence[str] = ()) -> None:
    """Make, alter or drop collections as an operator does."""
    for name in names:
        command = [sys.executable, "-m", "headwater", "collection", verb, name, "--node", node.url, *options]
        subprocess.run([*command, *(["--yes"] if verb == "drop" else [])], capture_output=True, text=True, check=True)


def _gone(client: Follower) -> tuple[int, int]:
    """How many documents the client has heard to be deleted, and to have expired."""
    return client.counts["deletion"], client.counts["expiration"]


def _fill(node: Node) -> dict[str, bytes]:
    stored = {f"document-{number}": b"%0300d" % number for number in range(3000)}
    assert sum(map(len, stored.values())) > 3 * WINDOW_BYTES
    with node.client() as bucket:
        bucket.set_many(stored.items())
        for number in range(100):
            bucket.delete(f"document-{number}")
            del stored[f"document-{number}"]
        for number in range(5):
            bucket.set(f"passing-{number}", b"x", expiry=1)
    return stored


def _write(node: Node, stored: dict[str, bytes], name: str) -> None:
    """One new document, one changed, one deleted."""
    changed, gone = list(stored)[:2]
    with node.client() as bucket:
        bucket.set(name, b"new")
        bucket.set(changed, name)
        bucket.delete(gone)
    del stored[gone]
    stored.update({name: b"new", changed: name.encode()})


def _write_everywhere(node: Node, stored: dict[str, bytes], name: str) -> None:
    """The same, and new documents in vbuckets of each node."""
    _write(node, stored, name)
    more = {f"{name}-{number}": b"new" for number in range(200)}
    with node.client() as bucket:
        bucket.set_many(more.items())
    stored.update(more)
