"""A console in this process, logged in to as a browser would be."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.testclient import TestClient

from headwater.client.routing import parse
from headwater.console.app import make_app
from headwater.console.desk import ConsoleSettings
from headwater.console.guard import Secrets
from headwater.console.server import ConsoleServer

SECRETS = Secrets("the-key", "the-session", "the-token")
BASE = "http://127.0.0.1:11280"
ORIGIN = {"origin": BASE, "sec-fetch-site": "same-origin"}


@contextmanager
def console(
    url: str,
    user: str | None = None,
    password: str | None = None,
    *,
    login: bool = True,
    lakes: tuple[str, ...] = (),
) -> Iterator[TestClient]:
    """A console of a bucket; `login` has opened it with its key."""
    settings = ConsoleSettings(parse(url), user, password, lakes=lakes, timeout_seconds=30.0)
    with TestClient(make_app(settings, SECRETS), base_url=BASE, follow_redirects=True) as browser:
        if login:
            assert browser.get("/login", params={"key": SECRETS.key}, follow_redirects=False).status_code == 303
        yield browser


def words(page: str) -> str:
    """The text of a page as it is read, without its tags."""
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


class Running:
    """A console that listens, as `headwater console` does; made by `running`."""

    def __init__(self, server: ConsoleServer) -> None:
        self.server = server
        self.cookie = f"headwater-console-{server.port}={server.secrets.session}"

    @contextmanager
    def events(self, path: str) -> Iterator[Iterator[tuple[str, Any]]]:
        """The server-sent events of a path, as (name, JSON)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        try:
            connection.request("GET", path, headers={"cookie": self.cookie})
            yield _parsed(connection.getresponse())
        finally:
            connection.close()


def _parsed(answer: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    name = ""
    while line := answer.readline().decode().rstrip("\n"):
        name = line.removeprefix("event: ")
        yield name, json.loads(answer.readline().decode().removeprefix("data: "))
        answer.readline()


@contextmanager
def running(url: str, user: str | None = None, password: str | None = None, **more: Any) -> Iterator[Running]:
    """A console that listens on a free port, in a thread."""
    server = ConsoleServer(ConsoleSettings(parse(url), user, password, timeout_seconds=30.0, **more))
    thread = threading.Thread(target=server.run, args=(lambda _: None,))
    thread.start()
    try:
        yield Running(server)
    finally:
        server.stop()
        thread.join(60)
        assert not thread.is_alive()


def until_told(browser: TestClient, path: str, *wanted: str, seconds: float = 120.0) -> str:
    """Load a page anew, its nodes asked each time, until its text has all of these words; return the page."""
    end = time.monotonic() + seconds
    while True:
        lookout = browser.app.state.desk.lookout  # type: ignore[attr-defined]
        for kept in (lookout._look, *lookout._groups.values()):
            kept.asked_at = float("-inf")
        page = browser.get(path).text
        if all(each in words(page) for each in wanted):
            return page
        assert time.monotonic() < end, (wanted, words(page))
