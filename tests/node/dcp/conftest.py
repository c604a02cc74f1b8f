"""A node without sockets; for tests of the consuming end one of its vbuckets is a replica."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.wire.vbucket import State
from tests.node.replication.test_machine import VB
from tests.node.streams.support import StreamDesk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[StreamDesk]:
    made = StreamDesk(tmp_path / "store")
    yield made
    made.close()


@pytest.fixture
def replica(desk: StreamDesk) -> None:
    desk.bucket.vbuckets[VB].set_state(State.REPLICA)
    desk.commit()
