import html
import re

import pytest
from starlette.testclient import TestClient

from headwater import testing
from headwater.client import KeyNotFound
from headwater.console.desk import Desk
from headwater.console.work import Job
from tests.cluster.nodes import check, documents, empty_nodes, fill, init

from .support import ORIGIN, SECRETS, console, words


def plan(browser: TestClient, kind: str, **fields: str) -> tuple[int, str]:
    answer = browser.get(f"/actions/{kind}/plan", params=fields)
    return answer.status_code, answer.text


def post(browser: TestClient, path: str, **fields: str) -> tuple[int, str]:
    answer = browser.post(path, data={"token": SECRETS.token} | fields, headers=ORIGIN)
    return answer.status_code, answer.text


def confirmed(page: str, typed: str) -> dict[str, str]:
    """Return what the form of a plan sends when these words were typed."""
    hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page)
    return {name: html.unescape(value) for name, value in hidden} | {"words": typed}


def until_ended(browser: TestClient) -> str:
    desk: Desk = browser.app.state.desk  # type: ignore[attr-defined]
    while desk.foreman.running is not None:
        browser.get("/actions")
    return words(browser.get("/actions").text)


def test_a_rebalance_goes_from_the_form_by_the_plan_to_its_end() -> None:
    with empty_nodes(2) as (one, two):
        init(one)
        fill(one, documents(200))
        with console(one.url) as browser:
            status, page = plan(browser, "rebalance", add=two.address, remove="", replicas="1")
            assert status == 200
            assert f"{two.address} 0 8 0 8" in words(page)
            assert "nothing has been done yet" in page
            status, refused = post(browser, "/actions/rebalance/begin", **confirmed(page, "no"))
            assert status == 400
            assert "Nothing was begun: type yes" in words(refused)
            assert "None has been begun" in browser.get("/actions").text
            assert post(browser, "/actions/rebalance/begin", **confirmed(page, "yes"))[0] == 200
            told = until_ended(browser)
            assert f"Rebalance: add {two.address}, 1 replicas : done" in told
            status, page = plan(browser, "rebalance")
            assert "There is nothing to do." in page
        check([one, two], documents(200))


def test_a_plan_that_is_no_longer_true_is_shown_again() -> None:
    with empty_nodes(2) as (one, two):
        init(one)
        with console(one.url) as browser:
            _, page = plan(browser, "rebalance", add=two.address)
            form = confirmed(page, "yes") | {"replicas": "1"}
            status, page = post(browser, "/actions/rebalance/begin", **form)
            assert status == 409
            assert "this is the plan now" in page
            assert "None has been begun" in browser.get("/actions").text


def test_a_flush_is_begun_by_the_name_of_the_bucket_alone() -> None:
    with testing.node(vbuckets=4) as node, console(node.url) as browser, node.client() as bucket:
        bucket.set("a", "v")
        _, page = plan(browser, "flush")
        assert "Every document of this bucket is deleted" in page
        assert post(browser, "/actions/flush/begin", **confirmed(page, "yes"))[0] == 400
        assert bucket.get("a").value == b"v"
        post(browser, "/actions/flush/begin", **confirmed(page, "default"))
        assert "1 nodes have deleted their documents" in until_ended(browser)
        with pytest.raises(KeyNotFound):
            bucket.get("a")


def test_a_form_that_is_sent_twice_begins_its_work_once() -> None:
    """A double click, or a browser that sends again what it had no answer to: the documents written since would go."""
    with testing.node(vbuckets=4) as node, console(node.url) as browser, node.client() as bucket:
        _, page = plan(browser, "flush")
        form = confirmed(page, "default")
        post(browser, "/actions/flush/begin", **form)
        until_ended(browser)
        bucket.set("a", "written since")
        status, answer = post(browser, "/actions/flush/begin", **form)
        told = until_ended(browser)
        assert bucket.get("a").value == b"written since"
        assert status == 200 and "Work of this console" in answer and told.count("Flush") == 2, "the job and the form"
        _, page = plan(browser, "flush")
        post(browser, "/actions/flush/begin", **confirmed(page, "default"))
        assert until_ended(browser).count("have deleted their documents") == 2


@pytest.mark.parametrize(
    ("kind", "fields", "status", "told"),
    [
        ("failover", {"dead": "127.0.0.1:1"}, 502, "cluster init"),
        ("rebalance", {"add": "a/b"}, 400, "host:port"),
        ("compaction", {"vbucket": "99", "hours": "1"}, 400, "one that a node has active"),
        ("nonsense", {}, 400, "one of rebalance, failover, compaction, flush"),
    ],
)
def test_what_can_not_be_planned_is_said(
    browser: TestClient, kind: str, fields: dict[str, str], status: int, told: str
) -> None:
    found, page = plan(browser, kind, **fields)
    assert found == status
    assert told in words(page)


def test_mirrors_that_are_not_given_are_asked_for(browser: TestClient) -> None:
    assert "headwater console --lake DIR" in browser.get("/mirrors").text


def test_a_page_whose_work_has_ended_stops_no_other_and_says_so(browser: TestClient) -> None:
    desk: Desk = browser.app.state.desk  # type: ignore[attr-defined]
    other = Job("rebalance", "Rebalance: spread evenly", 1.0)
    desk.foreman.jobs.appendleft(other)
    try:
        page = browser.get("/actions").text
        assert re.search(f'<input type="hidden" name="job" value="{other.id}">', page)
        status, told = post(browser, "/actions/stop", job=Job("rebalance", "", 0.0).id)
        assert (status, other.stopping) == (409, False)
        assert "has ended, and nothing was stopped" in words(told)
        assert post(browser, "/actions/stop", job=other.id)[0] == 200
        assert other.stopping
    finally:
        desk.foreman.jobs.remove(other)
