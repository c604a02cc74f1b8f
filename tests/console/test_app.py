import hashlib
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
    for name in ("console.css", "console.js", "charts.js", "tail.js", "icon.svg"):
        text = browser.get(f"/static/{name}").text.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert "://" not in text
    assert browser.get("/static/../app.py").status_code == 404


UPLOT = {  # npm's uplot 1.6.32, dist/uPlot.iife.min.js and dist/uPlot.min.css
    "uplot-1.6.32.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot-1.6.32.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


def test_the_library_of_the_charts_is_the_one_that_was_published_and_has_its_licence_with_it(
    browser: TestClient,
) -> None:
    page = browser.get("/rates").text
    for name, digest in UPLOT.items():
        assert f"/static/uplot/{name}" in page
        assert hashlib.sha256(browser.get(f"/static/uplot/{name}").content).hexdigest() == digest
    assert "MIT License" in browser.get("/static/uplot/LICENSE").text


def test_each_console_has_secrets_of_its_own(node: testing.Node) -> None:
    with TestClient(make_app(ConsoleSettings(parse(node.url), port=7)), base_url=BASE) as browser:
        assert browser.get("/login?key=the-key").status_code == 403


def test_nothing_is_logged_of_what_is_asked(node: testing.Node, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "headwater"), console(node.url) as browser:
        browser.get("/documents?key=a-private-key")
    assert "a-private-key" not in caplog.text
