from collections.abc import Iterator

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from headwater import testing
from headwater.console.app import ROUTES
from headwater.console.guard import BODY_BYTES_MAX, HEADERS, Secrets, same

from .support import BASE, ORIGIN, SECRETS, console

WRITING = [route.path for route in ROUTES if isinstance(route, Route) and "POST" in (route.methods or ())]


@pytest.fixture(scope="module")
def stranger(node: testing.Node) -> Iterator[TestClient]:
    with console(node.url, login=False) as made:
        yield made


@pytest.mark.parametrize("path", ["/", "/vbuckets", "/vbuckets/0", "/documents", "/documents?key=a", "/nothing"])
def test_without_the_cookie_there_is_nothing_to_see(stranger: TestClient, path: str) -> None:
    answer = stranger.get(path)
    assert answer.status_code == 401
    assert "127.0.0.1" not in answer.text


def test_the_key_opens_it_and_a_wrong_one_does_not(node: testing.Node) -> None:
    with console(node.url, login=False) as browser:
        for wrong in ("", "the-kez", SECRETS.session):
            assert browser.get("/login", params={"key": wrong}).status_code == 403
        assert browser.get("/").status_code == 401
        answer = browser.get("/login", params={"key": SECRETS.key}, follow_redirects=False)
        cookie = answer.headers["set-cookie"].lower()
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert browser.get("/").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:11280", "127.0.0.1.evil.example", "", "[::2]:80"])
def test_a_name_that_is_not_ours_is_refused(browser: TestClient, host: str) -> None:
    assert browser.get("/", headers={"host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1", "[::1]:11280"])
def test_this_machine_s_own_names_are_served_on_any_port(browser: TestClient, host: str) -> None:
    assert browser.get("/documents", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:8080"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
@pytest.mark.parametrize("path", WRITING)
def test_another_page_can_send_nothing(browser: TestClient, path: str, headers: dict[str, str]) -> None:
    answer = browser.post(path, data={"token": SECRETS.token, "key": "a", "value": "b"}, headers=headers)
    assert answer.status_code == 403
    assert "Another page sent this" in answer.text


@pytest.mark.parametrize("token", [None, "", "the-tokem", SECRETS.session])
@pytest.mark.parametrize("path", WRITING)
def test_every_form_brings_its_token(browser: TestClient, path: str, token: str | None) -> None:
    form = {"key": "a", "value": "b"} | ({} if token is None else {"token": token})
    answer = browser.post(path, data=form, headers=ORIGIN)
    assert answer.status_code == 403
    assert "older than this console" in answer.text


@pytest.mark.parametrize("path", WRITING)
def test_what_writes_can_not_be_read(browser: TestClient, path: str) -> None:
    assert browser.get(path).status_code == 405


def test_only_forms_are_taken_and_only_so_large(browser: TestClient) -> None:
    path = "/documents/store"
    assert browser.post(path, json={"token": SECRETS.token}, headers=ORIGIN).status_code == 415
    form = {"content-type": "application/x-www-form-urlencoded"} | ORIGIN
    assert browser.post(path, content=b"a" * (BODY_BYTES_MAX + 1), headers=form).status_code == 413
    assert browser.post(path, content=b"key=%ff", headers=form).status_code == 400
    assert browser.post(path, content=b"k\xff", headers=form).status_code == 400


@pytest.mark.parametrize("path", ["/", "/nothing", "/static/console.js", "/login?key=x", "/vbuckets/999"])
def test_every_answer_is_sealed(browser: TestClient, path: str) -> None:
    headers = browser.get(path).headers
    assert {name: headers[name] for name in HEADERS} == HEADERS
    assert "unsafe" not in headers["content-security-policy"]


def test_a_refusal_is_sealed_as_well(stranger: TestClient) -> None:
    assert stranger.get("/").headers["content-security-policy"] == HEADERS["content-security-policy"]


def test_secrets_are_new_each_time_and_not_shown() -> None:
    one, other = Secrets(), Secrets()
    assert len({one.key, one.session, one.token, other.key, other.session, other.token}) == 6
    assert one.key not in repr(one)
    assert same("a", "a")
    assert not same("\u00fc", "a")


def test_no_page_brings_a_script_or_a_style_of_its_own(browser: TestClient) -> None:
    for path in ("/", "/vbuckets", "/vbuckets/0", "/documents", "/documents?key=missing"):
        page = browser.get(path).text
        assert page.count("<script") == page.count('<script src="/static/')
        assert " style=" not in page
        assert "<style" not in page
        assert " on" + "click" not in page
        assert BASE not in page
