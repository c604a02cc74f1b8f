import re
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from headwater import client, testing
from headwater.accounts.roles import read_grants
from headwater.accounts.users import Account
from headwater.client import AuthError
from headwater.node.users.file import UsersFile

from .support import console, words
from .test_actions import post

SECRET = "a-long-secret"


@pytest.fixture
def guarded() -> Iterator[testing.Node]:
    with testing.node(vbuckets=4) as node:
        node.stop()
        UsersFile(node.data).save({"ann": Account.create(SECRET, read_grants("administer"))})
        node.start()
        yield node


@pytest.fixture
def as_ann(guarded: testing.Node) -> Iterator[TestClient]:
    with console(guarded.url, "ann", SECRET) as made:
        yield made


def test_a_user_is_added_given_roles_and_a_password_and_removed(as_ann: TestClient, guarded: testing.Node) -> None:
    twice = {"password": "first-secret", "again": "first-secret"}
    status, page = post(as_ann, "/users/add", name="app", roles="read,write", **twice)
    assert (status, "app may log in." in words(page)) == (200, True)
    assert "app read, write" in words(page)
    client.connect(guarded.url, "app", "first-secret").close()
    page = post(as_ann, "/users/roles", name="app", roles="read[default]")[1]
    assert "app read[default]" in words(page)
    other = {"password": "other-secret", "again": "other-secret"}
    assert "app has another password" in words(post(as_ann, "/users/password", name="app", **other)[1])
    client.connect(guarded.url, "app", "other-secret").close()
    assert "typed again; nobody was removed" in words(post(as_ann, "/users/remove", name="app", words="ap")[1])
    assert "app is removed" in words(post(as_ann, "/users/remove", name="app", words="app")[1])
    with pytest.raises(AuthError):
        client.connect(guarded.url, "app", "other-secret")


@pytest.mark.parametrize(
    ("form", "fields", "told"),
    [
        (
            "add",
            {"name": "ann", "roles": "read", "password": "x", "again": "x"},
            "change it: headwater user",
        ),
        ("add", {"name": "a:b", "roles": "read", "password": "x", "again": "x"}, "without a colon"),
        ("add", {"name": "app", "roles": "cook", "password": "x", "again": "x"}, "cook"),
        ("add", {"name": "app", "roles": "read", "password": "se-cret", "again": "x"}, "the same both times"),
        ("add", {"name": "app", "roles": "read", "password": "", "again": ""}, "1 to 512 bytes"),
        ("roles", {"name": "ann", "roles": "read"}, "no user would be left with the role administer"),
        ("roles", {"name": "nobody", "roles": "read"}, "see: headwater user list"),
        ("remove", {"name": "ann", "words": "ann"}, "no user would be left with the role administer"),
    ],
)
def test_what_can_not_be_is_said_and_leaves_the_users_as_they_were(
    as_ann: TestClient, form: str, fields: dict[str, str], told: str
) -> None:
    status, page = post(as_ann, f"/users/{form}", **fields)
    assert (status, told in words(page)) == (400, True), words(page)
    assert "se-cret" not in page
    assert "ann administer" in words(page)


def test_who_may_not_administer_sees_no_users_and_changes_none(guarded: testing.Node, as_ann: TestClient) -> None:
    twice = {"password": SECRET, "again": SECRET}
    post(as_ann, "/users/add", name="watch", roles="monitor", **twice)
    with console(guarded.url, "watch", SECRET) as browser:
        page = browser.get("/users").text
        assert "may not see who else there is" in words(page)
        assert "<form" not in page
        assert post(browser, "/users/add", name="x", roles="administer", **twice)[0] == 403
        for path in ("/collections", "/buckets"):
            assert "/plan" not in browser.get(path).text
            assert "may not make or drop" in browser.get(path).text


def test_a_node_without_users_says_what_the_first_one_changes(browser: TestClient) -> None:
    assert "No users were added here" in words(browser.get("/users").text)


@pytest.mark.parametrize("form", ["roles", "password", "remove"])
def test_a_page_from_before_a_user_was_removed_and_added_anew_changes_the_new_one_not(
    as_ann: TestClient, guarded: testing.Node, form: str
) -> None:
    twice = {"password": "first-secret", "again": "first-secret"}
    post(as_ann, "/users/add", name="app", roles="read", **twice)
    revision = re.findall(r'name="revision" value="(\d+)"', as_ann.get("/users").text)
    assert len(revision) == 3, "each form about a user that is there has it"
    post(as_ann, "/users/remove", name="app", words="app", revision=revision[0])
    post(as_ann, "/users/add", name="app", roles="read,write", **twice)
    fields = {"roles": "read", "words": "app", "password": "other", "again": "other", "revision": revision[0]}
    status, page = post(as_ann, f"/users/{form}", name="app", **fields)
    assert (status, "it was changed since" in words(page)) == (400, True)
    assert "app read, write" in words(page)
    client.connect(guarded.url, "app", "first-secret").close()
