"""The console of a bucket whose nodes speak TLS: the same pages, the same stream of changes."""

from __future__ import annotations

from headwater import testing
from headwater.console.desk import PAGES

from .support import console, running, words


def test_every_page_is_there_and_a_document_is_read() -> None:
    with testing.node(vbuckets=4, tls=True) as node, node.client() as bucket:
        bucket.set("order-1", "paid")
        with console(node.tls_url) as browser:
            for path, name in PAGES:
                answer = browser.get(path)
                assert (answer.status_code, name in words(answer.text)) == (200, True)
                assert "Stale" not in words(answer.text)
            assert node.host in browser.get("/").text
            assert "paid" in words(browser.get("/documents", params={"key": "order-1"}).text)


def test_the_tail_goes_over_tls() -> None:
    with (
        testing.node(vbuckets=4, tls=True) as node,
        node.client() as bucket,
        running(node.tls_url) as made,
        made.events("/tail/events?key=order-2") as events,
    ):
        assert next(events)[0] == "changes"
        bucket.set("order-2", "open")
        found: list[object] = []
        while not found:
            found = next(events)[1]["rows"]
        assert [row["key"] for row in found] == ["order-2"]  # type: ignore[index]
