import http.client
import json
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from headwater import testing
from headwater.client.routing import Address
from headwater.cluster.survey import Survey
from headwater.console import live
from tests.cluster.nodes import empty_nodes, init

from .support import console, running, until_told, words


def test_streams_are_shown_with_their_backlog(browser: TestClient, node: testing.Node) -> None:
    with node.client() as bucket:
        bucket.set("a", "v")
        with bucket.changes(name="<script>mine") as changes:
            next(changes)
            page = browser.get("/streams").text
    assert "&lt;script&gt;mine" in page
    assert "<script>mine" not in page
    assert "Streams of &lt;script&gt;mine" in page
    assert "in-memory" in page


def test_replicas_streams_are_shown_from_both_ends() -> None:
    with empty_nodes(2) as (one, two):
        init(one, two, replicas=1)
        with console(one.url) as browser:
            page = until_told(browser, "/streams", f"{one.address}/default yes", f"{two.address}/default yes", "sends")
    assert words(page).count("sends") >= 2
    assert words(page).count("receives") >= 2


def test_a_node_that_leaves_while_the_streams_are_asked_for_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page shares one look at the nodes: another one may take a newer look between two questions of this one."""
    with empty_nodes(2) as (one, two):
        init(one, two)
        with console(one.url) as browser:
            lookout = browser.app.state.desk.lookout  # type: ignore[attr-defined]
            assert two.address in browser.get("/streams").text
            before, stats = lookout._look.said, lookout.stats
            left = Survey(before.answer.survey.map, dict(list(before.answer.survey.nodes.items())[:1]))

            async def leaving(address: Address, group: str, seconds: float) -> Any:
                told = await stats(address, group, 0.0)
                with_one = replace(before, answer=replace(before.answer, survey=left))
                lookout._look.said = before if group == "replication" else with_one
                return told

            monkeypatch.setattr(lookout, "stats", leaving)
            for _ in range(2):
                assert browser.get("/streams").status_code == 200


def test_streams_of_nodes_that_are_gone_say_so() -> None:
    with testing.node(vbuckets=4) as node, console(node.url) as browser:
        assert "Nobody streams" in browser.get("/streams").text
        node.kill()
        until_told(browser, "/streams", "Stale.", "No answer now")


def test_rates_come_as_a_history_and_then_one_by_one(node: testing.Node) -> None:
    with running(node.url) as made, made.events("/rates/events") as events:
        name, history = next(events)
        assert name == "history"
        name, point = next(events)
        assert name == "point"
        while "writes" not in point["nodes"].get(node.address, {}):
            name, point = next(events)
        assert point["nodes"][node.address]["answer_ms"] > 0
        assert isinstance(history, list)


def test_a_tail_is_told_by_events(node: testing.Node) -> None:
    with running(node.url) as made, made.events("/tail/events?key=tailed") as events:
        assert next(events)[0] == "changes"
        with node.client() as bucket:
            bucket.set("tailed", "</script>")
        found: list[object] = []
        while not found:
            found = next(events)[1]["rows"]
        assert [(row["key"], row["value"]) for row in found] == [("tailed", "</script>")]  # type: ignore[index]


def test_a_filter_that_can_not_be_ends_with_its_reason(node: testing.Node) -> None:
    with running(node.url) as made, made.events("/tail/events?vbuckets=99") as events:
        name, told = next(events)
        assert name == "end"
        assert "there are 0 to 15" in told["why"]


def test_tails_have_a_number_and_give_their_place_back(node: testing.Node) -> None:
    with running(node.url) as made:
        held = [made.events("/tail/events") for _ in range(live.TAILS_MAX)]
        opened = [next(each.__enter__()) for each in held]
        assert {name for name, _ in opened} == {"changes"}
        with made.events("/tail/events") as events:
            assert next(events) == ("end", {"why": f"{live.TAILS_MAX} tails are open already; close one of them"})
        for each in held:
            each.__exit__(None, None, None)
        name = "end"
        while name == "end":  # a server learns of a closed connection when it writes next
            with made.events("/tail/events") as events:
                name = next(events)[0]


def test_live_pages_end_with_the_console_and_are_not_cut(node: testing.Node, caplog: pytest.LogCaptureFixture) -> None:
    with running(node.url) as made:
        tail, rates = made.events("/tail/events"), made.events("/rates/events")
        assert next(tail.__enter__())[0] == "changes"
        assert next(rates.__enter__())[0] == "history"
    assert [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")] == []


def test_events_are_for_who_has_the_cookie(node: testing.Node) -> None:
    with running(node.url) as made:
        connection = http.client.HTTPConnection("127.0.0.1", made.server.port, timeout=60)
        connection.request("GET", "/tail/events")
        assert connection.getresponse().status == 401
        connection.close()


def test_an_event_is_one_line_of_data() -> None:
    told = live.event("changes", {"key": "a\nb\u2028"})
    assert told.count("\n") == 3
    assert json.loads(told.splitlines()[1].removeprefix("data: ")) == {"key": "a\nb\u2028"}


def test_thousands_of_streams_are_shown_a_page_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    many: dict[str, str] = {}
    for reader in range(150):
        prefix = f"eq_dcpq:reader{reader:03}:"
        many |= {prefix + "type": "producer", prefix + "num_streams": "60"}
        for vbucket in range(60):
            many[f"{prefix}stream_{vbucket}_state"] = "in-memory"
            many[f"{prefix}stream_{vbucket}_items_remaining"] = "1"
    with testing.node(vbuckets=1) as node, console(node.url) as browser:
        stats = browser.app.state.desk.lookout.members.admin  # type: ignore[attr-defined]

        def admin(address: Address) -> Any:
            found = stats(address)

            async def told(group: str) -> dict[str, str]:
                return many if group == "dcp" else await type(found).stats(found, group)

            found.stats = told
            return found

        monkeypatch.setattr(browser.app.state.desk.lookout.members, "admin", admin)  # type: ignore[attr-defined]
        page = browser.get("/streams").text
        assert page.count("Streams of reader") == 2 * 32, "each with its heading and its label"
        assert page.count("<tr") < 32 * (live.STREAMS_SHOWN_MAX + 2) + 10
        assert "Connections 1 to 32 of 150" in words(page)
        assert "32 of 150 connections" in words(page)
        assert "page 1 of 5 next" in words(page)
        last = words(browser.get("/streams?page=5").text)
        assert "Connections 129 to 150 of 150" in last
        assert "reader149" in last
        assert "reader000" not in last
