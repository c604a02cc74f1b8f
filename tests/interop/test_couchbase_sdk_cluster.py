"""Couchbase's Python SDK writes durably to a cluster of three processes, of which one is killed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from threading import Thread

import pytest
from couchbase import exceptions
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.collection import Collection
from couchbase.durability import Durability, ServerDurability
from couchbase.options import ClusterOptions, ClusterTimeoutOptions, GetOptions, UpsertOptions

from harness.nodes import until
from headwater.cluster.failover import Failover
from headwater.cluster.members import Members
from headwater.testing.node import Node
from tests.cluster.nodes import at, empty_nodes, init, until_level

pytestmark = pytest.mark.interop
MINUTE, SHORT = timedelta(seconds=60), timedelta(seconds=3)
LEVELS = (Durability.MAJORITY, Durability.MAJORITY_AND_PERSIST_TO_ACTIVE, Durability.PERSIST_TO_MAJORITY)
KEYS = 200


def connect(node: Node) -> Cluster:
    timeouts = ClusterTimeoutOptions(bootstrap_timeout=MINUTE, connect_timeout=MINUTE, kv_timeout=MINUTE)
    options = ClusterOptions(PasswordAuthenticator("Administrator", "password"), timeout_options=timeouts)
    return Cluster.connect(f"couchbase://{node.address}", options)


class Writer(Thread):
    """Writes until a write fails; `successes` is what it was told is stored, `doubtful` the key it was not told of."""

    def __init__(self, documents: Collection, number: int) -> None:
        super().__init__(daemon=True)
        self.successes: dict[str, int] = {}
        self.doubtful = ""
        self._documents, self._number = documents, number

    def run(self) -> None:
        count = 0
        while True:
            key = f"w{self._number}-{count % KEYS}"
            durable = ServerDurability(LEVELS[count % len(LEVELS)])
            try:
                self._documents.upsert(key, count, UpsertOptions(durability=durable, timeout=SHORT))
            except exceptions.CouchbaseException:
                self.doubtful = key
                return
            self.successes[key] = count
            count += 1


def fail_over(seed: Node, dead: Node) -> None:
    async def work() -> None:
        async with Members() as members:
            await Failover(members, at(seed), at(dead)).run()

    asyncio.run(work())


def test_what_the_sdk_was_told_is_stored_survives_the_owner_that_was_killed() -> None:
    with empty_nodes(3) as nodes:
        init(*nodes, replicas=2)
        until_level(*nodes)
        writing = connect(nodes[0])
        documents = writing.bucket("default").default_collection()
        writers = [Writer(documents, number) for number in range(2)]
        for writer in writers:
            writer.start()
        until(lambda: all(len(writer.successes) >= 60 for writer in writers), "60 durable writes of each writer", 120)
        nodes[0].kill()
        for writer in writers:
            writer.join(120)
            assert not writer.is_alive() and writer.doubtful
        fail_over(nodes[1], nodes[0])
        reading = connect(nodes[1])
        documents = reading.bucket("default").default_collection()
        for writer in writers:
            for key, count in writer.successes.items():
                found = documents.get(key, GetOptions(timeout=MINUTE)).content_as[int]
                assert found == count or (key == writer.doubtful and found > count), key
        documents.upsert("after", 1, UpsertOptions(durability=ServerDurability(Durability.MAJORITY), timeout=MINUTE))
        writing.close()
        reading.close()
