import logging

import pytest
from starlette.testclient import TestClient

from headwater import testing
from headwater.client.routing import parse
from headwater.console.app import make_app
from headwater.console.desk import PAGES, ConsoleSettings

from .support import BASE, console, words


def test_every_page_of_the_navigation_is_there_and_marked(browser: TestClient) -> None:
    for path, name in PAGES:
        page = browser.get(path)
        assert page.status_code == 200
        assert f'<a href="{path}" aria-current="page">{name}</a>' in page.text
        assert page.text.count("aria-current") == 1


def test_what_is_not_there_is_a_page_that_says_so(browser: TestClient) -> None:
    answer = browser.get("/nothing")
    assert answer.status_code == 404
    assert "Not Found" in words(answer.text)


def test_the_parts_of_the_pages_come_from_here_alone(browser: TestClient) -> None:
    for name in ("console.css", "console.js", "icon.svg"):
        text = browser.get(f"/static/{name}").text.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert "://" not in text
    assert browser.get("/static/../app.py").status_code == 404


def test_each_console_has_secrets_of_its_own(node: testing.Node) -> None:
    with TestClient(make_app(ConsoleSettings(parse(node.url), port=7)), base_url=BASE) as browser:
        assert browser.get("/login?key=the-key").status_code == 403


def test_nothing_is_logged_of_what_is_asked(node: testing.Node, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "headwater"), console(node.url) as browser:
        browser.get("/documents?key=a-private-key")
    assert "a-private-key" not in caplog.text
