"""The figures of a scrape are what was done to the node, a real one."""

from __future__ import annotations

import base64
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from threading import Event, Thread

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.nodes import until
from headwater import testing
from headwater.accounts.roles import read_grants
from headwater.accounts.users import Account
from headwater.errors import KeyExists
from headwater.node.rest.metrics import METRICS
from headwater.node.users.file import UsersFile
from headwater.testing.node import Node
from headwater.wire.admin import IoctlSet
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode

NAME = "headwater_requests_total"
Scraped = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def labels(opcode: str, status: str) -> tuple[tuple[str, str], ...]:
    return (("opcode", opcode), ("status", status))


def fetch(node: Node, path: str, port: int | None = None) -> tuple[int, str, str]:
    """Status, type and text of a page."""
    try:
        with urllib.request.urlopen(f"http://{node.host}:{port or node.port}{path}", timeout=120) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, "", ""


def scrape(node: Node) -> Scraped:
    """Every value by its name and labels, of the bucket `default` without its name."""
    status, kind, text = fetch(node, "/metrics")
    assert status == 200 and kind.startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(text)
    return {(sample.name, of_default(sample.labels)): sample.value for made in families for sample in made.samples}


def of_default(labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(pair for pair in labels.items() if pair != ("bucket", "default")))


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with testing.node(vbuckets=8) as running:
        yield running


def test_commands_and_documents_are_those_that_were_asked_for(node: Node) -> None:
    before = scrape(node)
    with node.client() as bucket:
        bucket.set_many((f"k{number}", "v") for number in range(1000))
        bucket.get_many(f"k{number}" for number in range(100, 1100))
        bucket.delete_many(f"k{number}" for number in range(10))
        after = scrape(node)

    def grown(name: str, **labels: str) -> float:
        place = (name, tuple(sorted(labels.items())))
        return after[place] - before.get(place, 0)

    assert grown("headwater_commands_total", command="set") == 1000
    assert grown("headwater_commands_total", command="get") == 1000
    assert grown("headwater_commands_total", command="delete") == 10
    assert grown("headwater_get_hits_total") == 900
    assert grown("headwater_documents", state="active") == 990
    assert grown("headwater_commits_total") == grown("headwater_commit_seconds_count") > 0
    assert grown("headwater_commit_seconds_sum") > 0
    assert grown("headwater_live_bytes") > 0
    assert after["headwater_vbuckets", (("state", "active"),)] == 8
    assert after["headwater_connections_accepted_total", ()] > before["headwater_connections_accepted_total", ()]
    assert after["process_resident_memory_bytes", ()] > 1 << 20
    assert after["headwater_disk_free_bytes", ()] > 1 << 20


def test_a_scrape_tells_who_is_how_far_behind(node: Node) -> None:
    with node.client() as bucket, bucket.changes("now", name="slow reader", window_bytes=1) as changes:
        bucket.set_many((f"lag{number}", "v" * 100) for number in range(500))
        next(changes)
        told = scrape(node)
    behind = {labels: value for (name, labels), value in told.items() if name == "headwater_dcp_backlog_changes"}
    ((_, seconds),) = [(name, value) for (name, _), value in told.items() if name == "headwater_dcp_backlog_seconds"]
    assert 0 < seconds < 600
    ((((_, connection),), left),) = behind.items()
    assert connection.startswith("slow reader") and 0 < left <= 500
    assert told["headwater_dcp_streams", (("connection", connection),)] == 8
    assert told["headwater_dcp_connections", (("part", "producer"),)] == 1


def test_requests_are_told_by_opcode_and_status_with_the_time_that_they_took(node: Node) -> None:
    before = scrape(node)
    with node.client() as bucket:
        bucket.set_many((f"r{number}", "v") for number in range(500))
        bucket.get_many(f"r{number}" for number in range(400, 600))
        for _ in range(3):
            bucket.incr("r-count", initial=1)
        with pytest.raises(KeyExists):
            bucket.add("r1", "again")
    after = scrape(node)

    def grown(name: str, **labels: str) -> float:
        place = (name, tuple(sorted(labels.items())))
        return after.get(place, 0) - before.get(place, 0)

    def answered(opcode: str, status: str) -> float:
        return grown("headwater_requests_total", opcode=opcode, status=status)

    assert answered("SETQ", "SUCCESS") + answered("SET", "SUCCESS") == 500
    reads = [opcode for opcode in ("GET", "GETQ", "GETK", "GETKQ") if (NAME, labels(opcode, "SUCCESS")) in after]
    assert sum(answered(opcode, "SUCCESS") for opcode in reads) == 100
    assert sum(answered(opcode, "KEY_ENOENT") for opcode in reads) == 100
    assert answered("INCREMENT", "SUCCESS") == 3
    assert answered("ADD", "KEY_EEXISTS") == 1
    # What was answered also took its time: each once, and a change no less than its batch took to be on disk.
    for opcode in {dict(at)["opcode"] for name, at in after if name == NAME}:
        told = sum(value for (name, at), value in after.items() if name == NAME and dict(at)["opcode"] == opcode)
        assert after["headwater_request_seconds_count", (("opcode", opcode),)] == told, opcode
        assert after["headwater_request_seconds_sum", (("opcode", opcode),)] > 0, opcode
    assert grown("headwater_received_bytes_total") > 500 * 24
    assert grown("headwater_sent_bytes_total") > 100 * 24
    assert grown("headwater_written_bytes_total") > 500 * 50
    assert after["headwater_index_bytes", ()] > 28 * 500


def test_a_request_that_nobody_knows_is_one_of_a_kind(node: Node) -> None:
    before = scrape(node)
    with socket.create_connection((node.host, node.port), 120) as sock:
        for opcode in (0x4C, 0x68):
            sock.sendall(Frame(0x80, opcode).encode())
            assert sock.recv(24)[6:8] == b"\x00\x81"
    after = scrape(node)
    place = (NAME, labels("unknown", "UNKNOWN_COMMAND"))
    assert after[place] - before.get(place, 0) == 2


def test_a_replica_tells_whom_it_follows_and_a_producer_how_old_is_what_it_did_not_send(node: Node) -> None:
    with testing.node(vbuckets=8, vbucket_state="none") as replica, node.client() as bucket:
        told = json.dumps({"from": f"{node.address}/default", "vbuckets": "0-7"}).encode()
        with socket.create_connection((replica.host, replica.port), 120) as sock:
            sock.sendall(IoctlSet(key=b"replicate", value=told).frame().encode())
            assert sock.recv(24)[6:8] == b"\x00\x00"
        bucket.set_many((f"f{number}", "v" * 1000) for number in range(300))
        documents = scrape(node)["headwater_documents", (("state", "active"),)]
        producer = (("producer", f"{node.address}/default"),)
        level = {
            ("headwater_documents", (("state", "replica"),)): documents,
            ("headwater_replica_vbuckets", (*producer, ("stream", "open"))): 8,
            ("headwater_replica_vbuckets", (*producer, ("stream", "waiting"))): 0,
            ("headwater_replica_behind_changes", producer): 0,
        }
        deadline = time.monotonic() + 120
        while not level.items() <= (here := scrape(replica)).items():
            assert time.monotonic() < deadline, here
        assert 0 <= here["headwater_replica_silent_seconds", producer] < 120
        node_told = scrape(node)
        assert [at for name, at in node_told if name == "headwater_dcp_backlog_seconds"]


def test_scraping_while_writes_go_on_never_goes_back(node: Node) -> None:
    stop = Event()

    def write() -> None:
        with node.client() as bucket:
            while not stop.is_set():
                bucket.set_many((f"w{number}", "v") for number in range(200))

    def count() -> float:
        return scrape(node)["headwater_commands_total", (("command", "set"),)]

    writer, counters = Thread(target=write), [count()]
    writer.start()
    try:
        while len(counters) < 20 or counters[-1] == counters[0]:
            counters.append(count())
    finally:
        stop.set()
        writer.join()
    assert counters == sorted(counters)


def test_metrics_are_for_users_that_may_monitor_and_health_is_for_everybody() -> None:
    with testing.node(vbuckets=1, user="ann", environment={"HEADWATER_PASSWORD": "secret"}) as node:
        assert [fetch(node, path)[0] for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 401]


def test_who_may_monitor_one_bucket_sees_its_series_and_no_others() -> None:
    with testing.node(vbuckets=1) as node:
        with node.client() as bucket:
            bucket.set("k", "v")
        made = urllib.request.Request(
            f"http://{node.address}/pools/default/buckets", b"name=orders&vbuckets=1", method="POST"
        )
        with urllib.request.urlopen(made, timeout=120) as answer:
            assert answer.status == 202
        roles = {"all": "monitor", "one": "monitor[orders]", "none": "read"}
        with UsersFile(node.data).editing() as accounts:
            accounts |= {name: Account.create("secret", read_grants(role)) for name, role in roles.items()}
        until(lambda: fetch(node, "/metrics")[0] == 401, "the node has taken the users up")
        until(lambda: "orders" in with_password(node, "all", "secret")[1], "the bucket is there")
        told = {name: with_password(node, name, "secret") for name in roles}
    assert told["none"] == (403, set(), False)
    assert told["all"] == (200, {"default", "orders"}, True)
    assert told["one"] == (200, {"orders"}, False)


def with_password(node: Node, name: str, password: str) -> tuple[int, set[str], bool]:
    """Status, the buckets that have series, and whether there are series of the node and its process."""
    basic = base64.b64encode(f"{name}:{password}".encode()).decode()
    asked = urllib.request.Request(f"http://{node.address}/metrics", headers={"Authorization": f"Basic {basic}"})
    try:
        with urllib.request.urlopen(asked, timeout=120) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, set(), False
    buckets = {sample.labels["bucket"] for family in families for sample in family.samples if "bucket" in sample.labels}
    names = {family.name for family in families}
    return 200, buckets, bool(names & {"headwater_connections", "process_cpu_seconds", "headwater_disk_free_bytes"})


def test_a_port_of_its_own_has_the_pages_alone() -> None:
    login = {"HEADWATER_PASSWORD": "secret", "HEADWATER_LOGIN_SECONDS": "2"}  # for a request
    with testing.node(vbuckets=1, http_port=0, user="ann", environment=login) as node:
        assert node.http_port not in (None, node.port)
        paths = ("/healthz", "/readyz", "/metrics")
        assert [fetch(node, path, node.http_port)[0] for path in paths] == [200, 200, 401]
        with socket.create_connection((node.host, node.http_port), 120) as sock:
            sock.sendall(Frame(0x80, Opcode.NOOP).encode())
            assert sock.recv(1000) == b"", "no documents there"
        basic = base64.b64encode(b"ann:secret").decode()
        asked = urllib.request.Request(f"http://{node.host}:{node.http_port}/metrics")
        asked.add_header("Authorization", f"Basic {basic}")
        with urllib.request.urlopen(asked, timeout=120) as answer:
            assert b"headwater_uptime_seconds" in answer.read()


def test_a_node_without_metrics_has_no_page_of_them() -> None:
    with testing.node(vbuckets=1, no_metrics=True) as node:
        assert [fetch(node, path)[0] for path in ("/metrics", "/healthz")] == [404, 200]


def test_every_metric_is_told_with_its_meaning(node: Node) -> None:
    _, _, text = fetch(node, "/metrics")
    for metric in METRICS:
        assert f"# HELP {metric.full_name} {metric.about}" in text
        assert f"# TYPE {metric.full_name} {metric.kind}" in text
    assert len({metric.name for metric in METRICS}) == len(METRICS)
