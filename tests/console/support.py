"""A console in this process, logged in to as a browser would be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.testclient import TestClient

from headwater.client.routing import parse
from headwater.console.app import make_app
from headwater.console.desk import ConsoleSettings
from headwater.console.guard import Secrets

SECRETS = Secrets("the-key", "the-session", "the-token")
BASE = "http://127.0.0.1:11280"
ORIGIN = {"origin": BASE, "sec-fetch-site": "same-origin"}


@contextmanager
def console(
    url: str, user: str | None = None, password: str | None = None, *, login: bool = True
) -> Iterator[TestClient]:
    """A console of a bucket; `login` has opened it with its key."""
    settings = ConsoleSettings(parse(url), user, password, timeout_seconds=30.0)
    with TestClient(make_app(settings, SECRETS), base_url=BASE, follow_redirects=True) as browser:
        if login:
            assert browser.get("/login", params={"key": SECRETS.key}, follow_redirects=False).status_code == 303
        yield browser


def words(page: str) -> str:
    """The text of a page as it is read, without its tags."""
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())
