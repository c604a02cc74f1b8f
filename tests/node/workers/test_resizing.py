"""A folder gets another number of workers by a rebalance and a start, and loses nothing wherever that is killed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from harness.nodes import until
from headwater import testing
from headwater.errors import OptionError
from headwater.node.config import NodeConfig
from headwater.node.membership.file import MapFile
from headwater.node.storage.disk import RealDisk
from headwater.node.workers.layout import WorkersLayout, layout_of, load
from headwater.node.workers.resizing import resized, spares
from headwater.testing.node import Node, NodeError
from headwater.wire.address import Address
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import vbucket_of
from tests.cluster.nodes import command
from tests.node.rest.test_gathered import asked
from tests.node.wire import Client
from tests.node.workers.test_supervising import unstarted, workers_of

VBUCKETS = 16
KEYS = [f"key-{number}".encode() for number in range(160)]


def founded(tmp_path: Path) -> tuple[NodeConfig, WorkersLayout]:
    """Two workers that have been up once, with the map they began with."""
    config = NodeConfig(workers=2, port=0, vbuckets=16, data=tmp_path)
    layout = replace(layout_of(config), complete=True)
    layout.save(tmp_path)
    for number, address in enumerate(layout.addresses):
        (tmp_path / f"worker-{number}").mkdir()
        (tmp_path / f"worker-{number}" / "MANIFEST").touch()
        MapFile(RealDisk(), tmp_path / f"worker-{number}").save(layout.first_map("g").to_json(address), [])
    return config, layout


def test_more_workers_get_ports_of_their_own_and_may_have_no_store_yet(tmp_path: Path) -> None:
    config, layout = founded(tmp_path)
    assert resized(config, layout) == layout and spares(tmp_path, layout) == []
    more = resized(replace(config, workers=4), layout)
    assert more.ports[:2] == layout.ports and len(set(more.ports)) == 4 and more.joining == 2
    assert load(tmp_path) == more and spares(tmp_path, more) == list(more.addresses[2:])
    assert b"headwater-workers 2 " in (tmp_path / "WORKERS").read_bytes(), "older releases do not begin with it"
    for number in range(4):
        more.check_store(tmp_path, number)
    replace(more, joining=0).save(tmp_path)
    assert b"headwater-workers 1 " in (tmp_path / "WORKERS").read_bytes()
    assert resized(replace(config, workers=0), more) == more


def test_new_ports_follow_a_row_and_are_none_of_the_node(tmp_path: Path) -> None:
    config, layout = founded(tmp_path)
    row = replace(layout, ports=(19210, 19211), tls_ports=(19212, 19213))
    more = resized(replace(config, workers=3), row)
    assert (more.ports, more.tls_ports) == ((19210, 19211, 19214), (19212, 19213, 19215))
    with pytest.raises(OptionError, match="worker-port"):
        resized(replace(config, workers=3, port=19214), row)
    given = resized(replace(config, workers=3, worker_port=19310), row)
    assert (given.ports[2], given.tls_ports[2]) == (19310, 19311)


def test_a_worker_goes_when_no_map_names_it_and_its_folder_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, layout = founded(tmp_path)
    more = replace(resized(replace(config, workers=4), layout), joining=0)
    first = more.first_map("g")
    for number in range(4):
        (tmp_path / f"worker-{number}").mkdir(exist_ok=True)
        MapFile(RealDisk(), tmp_path / f"worker-{number}").save(first.to_json(more.addresses[number]), [])
    with pytest.raises(OptionError, match=f"headwater cluster rebalance .*--remove {more.addresses[2]} --remove"):
        resized(replace(config, workers=2), more)
    later = layout.first_map("g").after(first.rev)
    MapFile(RealDisk(), tmp_path / "worker-1").save(later.to_json(more.addresses[1]), [])
    with caplog.at_level(logging.WARNING):
        assert resized(replace(config, workers=2), more).ports == layout.ports, "the newest map counts"
    aside = sorted(each.name.rpartition("-")[0] for each in tmp_path.glob("left-*"))
    assert aside == ["left-worker-2", "left-worker-3"] and "worker 3 has left" in caplog.text
    assert sorted(each.name for each in tmp_path.glob("worker-*")) == ["worker-0", "worker-1"]
    (tmp_path / "worker-2").mkdir()  # of a start that was killed before it could
    resized(config, layout)
    assert not (tmp_path / "worker-2").exists()


def test_maps_of_all_buckets_count(tmp_path: Path) -> None:
    config, layout = founded(tmp_path)
    more = resized(replace(config, workers=3), layout)
    orders = replace(more, bucket="orders").first_map("g")
    folder = tmp_path / "worker-0" / "buckets" / "2"
    folder.mkdir(parents=True)
    MapFile(RealDisk(), folder).save(orders.to_json(more.addresses[0]), [])
    with pytest.raises(OptionError, match="bucket orders"):
        resized(config, more)


def test_founding_comes_first_and_a_cluster_of_machines_is_its_operators(tmp_path: Path) -> None:
    config, layout = founded(tmp_path)
    for known in (replace(layout, complete=False), replace(layout, has_map=False)):
        with pytest.raises(OptionError, match="workers"):
            resized(replace(config, workers=3), known)


# --------------------------------------------------------------------------- real nodes


def store(node: Node, value: bytes) -> None:
    with Client(node.port) as client:
        for key in KEYS:
            vb = vbucket_of(key, VBUCKETS)
            assert client.ask(Opcode.SET, key=key, vbucket=vb, extras=bytes(8), value=value).status == 0


def check(node: Node, value: bytes) -> None:
    """All documents are there, for clients that know one address."""
    for _ in range(3):  # whichever worker is reached
        with Client(node.port) as client:
            found = {client.ask(Opcode.GET, key=key, vbucket=vbucket_of(key, VBUCKETS)).value for key in KEYS}
            assert found == {value}


@contextmanager
def writing(node: Node) -> Iterator[list[bytes]]:
    """Documents are written meanwhile by a client of the common address; yields the last value of all that were
    acknowledged."""
    is_over, written = threading.Event(), [b"0"]

    def work() -> None:
        while not is_over.is_set():
            value = b"%d" % (int(written[-1]) + 1)
            for key in KEYS:
                until(partial(stored, node, key, value), "it is stored")
            written.append(value)

    with ThreadPoolExecutor(1) as pool:
        work_done = pool.submit(work)
        try:
            yield written
        finally:
            is_over.set()
        work_done.result()
        assert len(written) > 1


def stored(node: Node, key: bytes, value: bytes) -> bool:
    try:
        with Client(node.port) as client:
            answer = client.ask(Opcode.SET, key=key, vbucket=vbucket_of(key, VBUCKETS), extras=bytes(8), value=value)
    except (OSError, AssertionError):  # the connection of a worker that has left the map
        return False
    assert answer.status in (0, Status.ETMPFAIL, Status.NOT_MY_VBUCKET), answer
    return answer.status == 0


def rebalance(node: Node, option: str, *addresses: Address) -> int:
    changes = [part for address in addresses for part in (option, str(address))]
    return command("cluster", "rebalance", node.address, *changes, "--yes")[0]


def layout_in(node: Node) -> WorkersLayout:
    layout = load(node.data)
    assert layout is not None
    return layout


def test_a_folder_gets_more_workers_and_fewer_again_while_clients_write() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node:
        store(node, b"0")
        node.options["workers"] = 3
        assert node.restart().is_running and len(workers_of(node)) == 3
        (new,) = layout_in(node).addresses[2:]
        until(lambda: f"--add {new}" in node.log, "the log says how it joins")
        assert layout_in(node).joining == 0
        check(node, b"0")
        assert asked(node, "/readyz")[0] == 200, "who has no part yet is no reason"
        with writing(node) as written:
            assert rebalance(node, "--add", new) == 0
        check(node, written[-1])
        with node.client() as bucket:
            assert {len(bucket.map.held_by(server)[0]) for server in bucket.map.servers} == {5, 6}
        node.options["workers"] = 2
        with pytest.raises(NodeError, match=f"--remove {new}"):
            node.restart()
        node.options["workers"] = 3
        node.start().kill()
        with writing(node.start()) as written:
            assert rebalance(node, "--remove", new) == 0
        check(node, written[-1])
        node.options["workers"] = 2
        assert node.restart().is_running and len(workers_of(node)) == 2
        check(node, written[-1])
        assert len(list(node.data.glob("left-worker-2-*"))) == 1 and not (node.data / "worker-2").exists()


@pytest.mark.parametrize("failpoint", ["workers.before_rename", "workers.after_rename", "log.append"])
def test_workers_that_were_added_by_a_start_that_was_killed_are_there_at_the_next(failpoint: str) -> None:
    with unstarted(workers=2) as node:
        store(node.start(), b"1")
        node.stop()
        node.options["workers"] = 3
        node.environment = {"HEADWATER_FAILPOINTS": f"{failpoint}=kill"}
        with pytest.raises(NodeError):
            node.start()
        node.environment = {}
        assert node.start().is_running and len(workers_of(node)) == 3
        check(node, b"1")


def test_a_rebalance_between_workers_that_is_killed_with_the_node_goes_on() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node:
        store(node, b"1")
        node.options["workers"] = 3
        node.environment = {"HEADWATER_FAILPOINTS": "replica.state=kill@6"}
        node.restart()
        (new,) = layout_in(node).addresses[2:]
        assert rebalance(node, "--add", new) != 0, "the new worker has died amid a takeover"
        node.kill()
        node.environment = {}
        node.start()
        assert rebalance(node, "--add", new) == 0
        check(node, b"1")
