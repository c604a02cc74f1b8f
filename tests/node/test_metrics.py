"""The figures of a scrape are what was done to the node, a real one."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from threading import Event, Thread

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headwater import testing
from headwater.node.metrics import METRICS
from headwater.testing.node import Node

Scraped = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def fetch(node: Node, path: str) -> tuple[int, str, str]:
    """Status, type and text of a page."""
    try:
        with urllib.request.urlopen(f"http://{node.address}{path}", timeout=120) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, "", ""


def scrape(node: Node) -> Scraped:
    """Every value by its name and labels."""
    status, kind, text = fetch(node, "/metrics")
    assert status == 200 and kind.startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(text)
    return {(each.name, tuple(sorted(each.labels.items()))): each.value for made in families for each in made.samples}


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
    ((((_, connection),), left),) = behind.items()
    assert connection.startswith("slow reader") and 0 < left <= 500
    assert told["headwater_dcp_streams", (("connection", connection),)] == 8
    assert told["headwater_dcp_connections", (("part", "producer"),)] == 1


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


def test_every_metric_is_told_with_its_meaning(node: Node) -> None:
    _, _, text = fetch(node, "/metrics")
    for each in METRICS:
        assert f"# HELP {each.full_name} {each.about}" in text
        assert f"# TYPE {each.full_name} {each.kind}" in text
    assert len({each.name for each in METRICS}) == len(METRICS)
