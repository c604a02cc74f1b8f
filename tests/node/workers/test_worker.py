"""A worker knows which it is, and the others."""

from __future__ import annotations

import socket
from pathlib import Path

from headwater.node.workers.worker import NodeWorker
from headwater.wire.address import Address

from .test_layout import LAYOUT


def test_a_worker_knows_the_others_by_their_addresses_and_where_each_is_called() -> None:
    with socket.socket() as public:
        worker = NodeWorker(1, LAYOUT, "g", Path("d"), public, None, Path("/run/relays"))
    assert worker.siblings == {Address("127.0.0.1", 1): 0, Address("127.0.0.1", 3): 2}
    assert worker.relay(2) == "/run/relays/worker-2"


def test_a_worker_listens_where_one_before_it_did(tmp_path: Path) -> None:
    with socket.socket() as public:
        worker = NodeWorker(1, LAYOUT, "g", Path("d"), public, None, tmp_path)
    for _ in range(2):
        with worker.listen(), socket.socket(socket.AF_UNIX) as caller:
            caller.connect(worker.relay(1))
