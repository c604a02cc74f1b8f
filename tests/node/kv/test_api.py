"""The node and its key-value sessions have what handlers are promised."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from headwater.node.buckets.bucket import Bucket
from headwater.node.committer import Committer
from headwater.node.config import NodeConfig
from headwater.node.kv.api import Follower, Member, Services, Session, TapSessions
from headwater.node.kv.session import KvSession
from headwater.node.server import Server
from headwater.node.storage.store import Store
from tests.node.support import FakeConnection, desk


def promised(surface: type) -> set[str]:
    return {name for name in {**vars(surface), **surface.__annotations__} if not name.startswith("_")}


def missing(surface: type, thing: object) -> set[str]:
    return {name for name in promised(surface) if not hasattr(thing, name)}


def test_a_node_that_listens_and_a_session_of_it_have_all_of_it(tmp_path: Path) -> None:
    async def story() -> None:
        loop, config = asyncio.get_running_loop(), NodeConfig(data=tmp_path, vbuckets=4, port=0)
        store = Store.open(tmp_path, vbuckets=4)
        committer = Committer(store, loop)
        bucket = Bucket("default", store, committer)
        bucket.recover(config)
        server = Server(config, bucket, committer, loop)
        server.listen()
        connection: Any = FakeConnection()
        served = server.first
        session = KvSession(connection, served)
        assert len(promised(Services)) > 15 and missing(Services, served) == set()
        assert len(promised(Session)) > 15 and missing(Session, session) == set()
        assert missing(Member, served.membership) == missing(Follower, served.replication) == set()
        assert missing(TapSessions, served.tap) == set()
        await server.close()
        store.close()

    asyncio.run(story())


class Counted:
    made = 0

    def __init__(self) -> None:
        Counted.made += 1


class Other:
    pass


def test_a_part_of_the_node_finds_what_it_kept_with_a_connection(tmp_path: Path) -> None:
    with desk(tmp_path) as one:
        talk, another = one.session(), one.session()
        kept = talk.kv.state_of(Counted)
        assert isinstance(talk.kv.state_of(Other), Other)
        assert talk.kv.state_of(Counted) is kept and Counted.made == 1
        assert another.kv.state_of(Counted) is not kept
