"""Real nodes and the commands on them, for the tests of what runs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryFile
from threading import Event, Thread

from headwater import client
from headwater.client.routing import Address
from headwater.cluster.founding import found_cluster
from headwater.cluster.members import Members
from headwater.cluster.rebalance import Rebalance
from headwater.cluster.watch import Watch
from headwater.errors import StatusError, TransportError
from headwater.testing import processes
from headwater.testing.node import Node, node

from .contents import check_cluster

VBUCKETS = 16


def at(*nodes: Node) -> list[Address]:
    """Where nodes listen."""
    return [Address(node.host, node.port) for node in nodes]


@contextmanager
def empty_nodes(count: int) -> Iterator[list[Node]]:
    """Nodes without vbuckets."""
    with ExitStack() as stack:
        yield [stack.enter_context(node(vbuckets=VBUCKETS, vbucket_state="none")) for _ in range(count)]


def init(*nodes: Node, replicas: int = 0) -> None:
    """`headwater cluster init`."""

    async def work() -> None:
        async with Members() as members:
            await found_cluster(members, at(*nodes), replicas)

    asyncio.run(work())


def rebalance(seed: Node, **options: object) -> object:
    """`headwater cluster rebalance`; returns what `Rebalance.run` does."""

    async def work() -> object:
        async with Members() as members:
            return await Rebalance(members, at(seed), **options).run()  # type: ignore[arg-type]

    return asyncio.run(work())


def command(*arguments: str, failpoints: str = "") -> tuple[int, str, str]:
    """A command in a process of its own, forked as nodes are; returns (status, stdout, stderr)."""
    with TemporaryFile() as told:
        process = processes.start([*arguments], {**os.environ, "HEADWATER_FAILPOINTS": failpoints}, told)
        assert process.stdout
        with process.stdout as out:
            shown = out.read()
        status = process.wait(120)
        told.seek(0)
        return status, shown.decode(), told.read().decode()


def fill(to: Node, documents: dict[bytes, bytes]) -> None:
    """Store documents."""
    with client.connect(to.url) as bucket:
        assert not bucket.set_many(documents.items())


def documents(count: int = 2000) -> dict[bytes, bytes]:
    """So many, all different."""
    return {f"key-{number}".encode(): f"value {number}".encode() * 3 for number in range(count)}


class Writer(Thread):
    """An application that writes on, whatever happens to the nodes; `acknowledged` is what it was told is stored.

    A write whose answer was lost is written again: after that it is acknowledged, or the test waits for ever.
    """

    def __init__(self, to: Node) -> None:
        super().__init__(daemon=True)
        self.acknowledged: dict[bytes, bytes] = {}
        self.error: BaseException | None = None
        self._url, self._over = to.url, Event()

    def run(self) -> None:
        """Write until `stop`."""
        try:
            with client.connect(self._url, timeout_seconds=120.0) as bucket:
                number = 0
                while not self._over.is_set():
                    self._write(bucket, number)
                    number += 1
        except BaseException as error:  # `stop` raises it again
            self.error = error

    def _write(self, bucket: client.Client, number: int) -> None:
        key, value = f"written-{number % 500}".encode(), f"the {number}th".encode()
        while True:
            try:
                bucket.set(key, value)
            except (TransportError, StatusError):
                if self._over.is_set():
                    return
            else:
                self.acknowledged[key] = value
                return

    def until_acknowledged(self, count: int) -> None:
        """Wait for so many different keys."""
        give_up = time.monotonic() + 120
        while len(self.acknowledged) < count:
            assert self.is_alive() and time.monotonic() < give_up, (self.error, len(self.acknowledged))
            time.sleep(0.01)

    def __enter__(self) -> Writer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join(120)
        assert not self.is_alive(), "the writer hangs"
        if self.error is not None:
            raise self.error


def until_level(*nodes: Node) -> None:
    """Wait for the replicas to have what their actives have now."""

    async def work() -> None:
        async with Members() as members:
            survey = await members.survey(at(*nodes))
            await Watch(members).until_all_level(survey.map)

    asyncio.run(work())


def check(nodes: list[Node], expected: dict[bytes, bytes]) -> None:
    """Every vbucket has one owner, replicas come to equal their actives, and the documents are these."""
    until_level(*nodes)
    there = check_cluster([node.port for node in nodes])
    missing = {key for key in expected if there.get(key) != expected[key]}
    assert not missing, f"{len(missing)} of {len(expected)} documents are wrong, such as {min(missing)!r}"
    assert there.keys() == expected.keys()
