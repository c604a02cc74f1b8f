"""Keys by their prefix: the pages, and how far they look."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Iterator
from typing import Any, cast

import pytest
from starlette.testclient import TestClient

from headwater import client, testing
from headwater.accounts.roles import read_grants
from headwater.accounts.users import Account
from headwater.client.aio import AsyncDocuments
from headwater.client.scans import KeyPage
from headwater.console.listing import KEYS_SHOWN, KeyList, ListPlace, list_keys
from headwater.errors import ConnectionLost, NoAccess, OptionError
from headwater.node.users.file import UsersFile
from tests.node.aware import Aware, manifest

from .support import console, words

NOISE = [b"other::%d" % number for number in range(300)]
ORDERS = [b"order::%d" % number for number in range(250)]
ODD = [b"order::<script>", b"order::\x00\n\xff", b"order::gr\xc3\xbc\xc3\x9fe"]


@pytest.fixture(scope="module")
def node() -> Iterator[testing.Node]:
    with testing.node(vbuckets=16) as running:
        with running.client() as bucket:
            bucket.set_many(dict.fromkeys([*NOISE, *ORDERS, *ODD], "v"))
        yield running


def shown(page: str) -> list[str]:
    return [html.unescape(each) for each in re.findall(r'<tr><th scope="row"><a href="[^"]*">([^<]*)</a>', page)]


def walked(browser: TestClient, address: str) -> list[str]:
    """The keys of all pages, from the first on."""
    found: list[str] = []
    for _ in range(20):
        page = browser.get(address).text
        rows = shown(page)
        assert len(rows) <= KEYS_SHOWN
        found += rows
        following = re.search(r'<a href="([^"]*)" rel="next">', page)
        if not following:
            return found
        address = html.unescape(following[1])
    raise AssertionError("the list has no end")


def test_the_pages_of_a_prefix_bring_each_key_once(browser: TestClient) -> None:
    told = walked(browser, "/documents?prefix=order::")
    assert sorted(told) == sorted(
        [*(key.decode() for key in ORDERS), "order::<script>", "order::\\x00\\n\\xff", "order::gr\u00fc\u00dfe"]
    )
    assert len(walked(browser, "/documents?prefix=")) == len([*NOISE, *ORDERS, *ODD])
    assert walked(browser, "/documents?prefix=none") == []
    assert walked(browser, "/documents?prefix=6f726465723a3a00&form=hex") == ["order::\\x00\\n\\xff"]


def test_each_key_of_a_list_leads_to_its_document(browser: TestClient) -> None:
    page = browser.get("/documents?prefix=6f726465723a3a00&form=hex").text
    assert "<script>order" not in page
    link = re.search(r'<th scope="row"><a href="([^"]*)"', page)
    assert link and "Store over this version" in browser.get(html.unescape(link[1])).text


@pytest.mark.parametrize("asked", ["from=16", "from=x", "after=6", "prefix=" + "k" * 251])
def test_a_place_that_is_none_is_said(browser: TestClient, asked: str) -> None:
    answer = browser.get(f"/documents?prefix=&{asked}" if "prefix" not in asked else f"/documents?{asked}")
    assert answer.status_code == 400


def test_a_list_of_a_bucket_that_is_away_says_so() -> None:
    with console("couchbase://127.0.0.1:1/default") as browser:
        assert browser.get("/documents?prefix=").status_code == 502


def test_a_user_sees_the_keys_that_his_rights_show() -> None:
    with testing.node(vbuckets=4) as node:
        with Aware(node.port) as line:
            assert line.becomes(manifest(1, a=8)) == 0
            assert line.put(b"shown", b"v", 8) == 0 and line.put(b"their-key", b"v") == 0
        node.stop()
        roles = {"root": "administer", "part": "read[default:shop:a],stream[default:shop:a]", "blind": "write,monitor"}
        UsersFile(node.data).save({name: Account.create("s3cret", read_grants(role)) for name, role in roles.items()})
        node.start()
        with client.connect(node.url, "root", "s3cret"):
            pass
        with console(node.url, "part", "s3cret") as browser:
            assert shown(browser.get("/documents?prefix=&collection=shop.a").text) == ["shown"]
            refused = browser.get("/documents?prefix=")
            assert refused.status_code != 200 and "their-key" not in refused.text and not shown(refused.text)
            assert "may not stream" not in words(browser.get("/tail").text)
        with console(node.url, "blind", "s3cret") as browser:
            refused = browser.get("/documents?prefix=")
            assert refused.status_code == 403 and not shown(refused.text)
            assert "may not read documents" in words(refused.text)
            assert "may not stream" in words(browser.get("/tail").text)


# --------------------------------------------------------------------------- how far a page looks


class Vbuckets:
    """Documents whose vbuckets have these keys, or do not answer; a look takes `seconds`."""

    def __init__(self, *vbuckets: list[bytes] | Exception, seconds: float = 0.0) -> None:
        self.vbuckets, self.seconds, self.now = vbuckets, seconds, 0.0
        self.looks: list[int] = []

    async def keys_of_vbucket(self, vbucket: int, prefix: bytes, *, after: bytes, most: int) -> KeyPage:
        self.looks.append(vbucket)
        self.now += self.seconds
        found = self.vbuckets[vbucket]
        if isinstance(found, Exception):
            raise found
        keys = [key for key in sorted(found) if key.startswith(prefix) and key > after]
        return KeyPage(keys[:most], len(keys) <= most)

    def listed(self, place: ListPlace = ListPlace()) -> KeyList:  # noqa: B008 - it is frozen
        documents = cast("AsyncDocuments", cast("Any", self))
        return asyncio.run(list_keys(documents, len(self.vbuckets), b"k", place, lambda: self.now))


def test_a_page_that_is_full_goes_on_within_its_vbucket() -> None:
    keys = [b"k%03d" % number for number in range(KEYS_SHOWN + 1)]
    bucket = Vbuckets([], keys, [b"k"])
    first = bucket.listed()
    assert len(first.rows) == KEYS_SHOWN and first.more == ListPlace(1, keys[-2])
    second = bucket.listed(first.more)
    assert [row.key for row in second.rows] == [keys[-1], b"k"] and second.more is None


def test_a_rare_prefix_is_looked_for_in_several_vbuckets_at_once_and_for_a_while_only() -> None:
    bucket = Vbuckets(*[[]] * 1000, seconds=0.5)
    found = bucket.listed()
    assert found.rows == [] and found.more == ListPlace(found.looked) and found.looked == len(bucket.looks) < 50


def test_a_vbucket_that_does_not_answer_is_named_and_the_others_are_not_lost() -> None:
    lost = ConnectionLost("10.0.0.1:11210", "connection refused")
    found = Vbuckets([b"k1"], lost, [b"k2"]).listed()
    assert [row.key for row in found.rows] == [b"k1"] and found.looked == 1 and found.more == ListPlace(2)
    assert found.problem == "10.0.0.1:11210: connection refused"
    with pytest.raises(NoAccess):
        Vbuckets(NoAccess("list")).listed()


def test_a_place_comes_back_from_an_address() -> None:
    place = ListPlace(7, b"\x00\xff")
    assert ListPlace.of(place.fields(), 8) == place and ListPlace.of({}, 1) == ListPlace()
    with pytest.raises(OptionError):
        ListPlace.of(place.fields(), 7)
