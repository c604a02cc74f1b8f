"""Requests to a search server and what is made of its answers, through a real socket."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import ConnectionLost, OptionError, SearchRefused
from headwater.pipelines.opensearch import BULK_ITEMS, Item, SearchClient, SearchServer, identifier, key_of, version
from tests.pipelines.search_server import SearchIndex, login, search_server

Served = tuple[SearchClient, SearchIndex]


@pytest.fixture
def served() -> Iterator[Served]:
    with search_server() as (url, index), closing(SearchClient(SearchServer(url, retry_seconds=20.0))) as client:
        client.prepare()
        yield client, index


def item(key: bytes, number: int, text: str | None = "red wine") -> Item:
    document = None if text is None else {"body": text, "vbucket": 3, "generation": number >> 44, "expiry": 0}
    return Item(key, number, document)


def test_an_item_is_two_lines_and_a_deletion_one() -> None:
    assert item(b"a", 7).lines().split(b"\n")[0] == b'{"index": {"_id": "a", "version": 7, "version_type": "external"}}'
    assert json.loads(item(b"a", 7).lines().split(b"\n")[1])["body"] == "red wine"
    assert item(b"a", 8, None).lines() == b'{"delete": {"_id": "a", "version": 8, "version_type": "external"}}\n'


@given(st.binary(min_size=1, max_size=250) | st.text(min_size=1, max_size=60).map(lambda t: b"base64:" + t.encode()))
def test_every_key_has_an_id_of_its_own_that_leads_back(key: bytes) -> None:
    assert key_of(identifier(key)) == key
    assert len(identifier(key).encode()) <= 512


def test_a_later_generation_wins_over_any_seqno_of_an_earlier_one() -> None:
    assert version(0, 1) < version(0, 2) < version(0, (1 << 44) - 1) < version(1, 0) < version(1, 1) < 1 << 62


def test_what_comes_twice_or_late_changes_nothing(served: Served) -> None:
    client, index = served
    first = client.bulk([item(b"a", 5, "new"), item(b"b", 6, None)])
    assert (first.stored, first.deleted, first.behind) == (1, 1, 0)
    again = client.bulk([item(b"a", 5, "new"), item(b"a", 3, "late"), item(b"b", 2, "late"), item(b"b", 6, None)])
    assert (again.stored, again.deleted, again.behind) == (0, 0, 4)
    assert {name: document["body"] for name, document in index.documents.items()} == {"a": "new"}


def test_items_for_which_there_is_no_room_now_are_sent_again_and_those_alone(served: Served) -> None:
    client, index = served
    index.busy, index.down = 3, 2
    done = client.bulk(item(b"k%d" % n, n + 1) for n in range(5))
    assert (done.stored, done.behind, len(index.documents)) == (5, 0, 5)
    assert len(index.applied) == 5


def test_a_server_that_stays_too_busy_is_an_error_that_passes(served: Served) -> None:
    client, index = served
    index.busy = 1 << 30
    hasty = SearchServer(client.server.url, retry_seconds=0.1)
    told = pytest.raises(ConnectionLost, match="1 documents are refused again and again")
    with closing(SearchClient(hasty)) as impatient, told:
        impatient.bulk([item(b"a", 1)])


def test_a_document_that_is_refused_for_good_is_named_and_the_others_are_in(served: Served) -> None:
    client, index = served
    index.poison = "poison"
    done = client.bulk([item(b"a", 1), item(b"b", 2, "poison"), item(b"c", 3)])
    assert (done.stored, done.refused) == (2, {"b": "400: failed to parse"})


BLOCKS = [
    (403, "cluster_block_exception"),
    (403, "security_exception"),
    (401, "security_exception"),
    (404, "index_not_found_exception"),
    (400, "index_closed_exception"),
    (405, "anything_else"),
]


@pytest.mark.parametrize("block", BLOCKS)
def test_an_index_that_takes_nothing_fails_the_batch_and_no_document(served: Served, block: tuple[int, str]) -> None:
    client, index = served
    client.bulk([item(b"a", 1), item(b"b", 2)])
    index.block = block
    hasty = SearchServer(client.server.url, retry_seconds=0.1)
    told = pytest.raises(SearchRefused, match=f"2 documents are refused: {block[0]}: not now")
    with closing(SearchClient(hasty)) as impatient, told:
        impatient.bulk([item(b"a", 3, None), item(b"b", 4, "white wine")])
    index.block = None
    done = client.bulk([item(b"a", 3, None), item(b"b", 4, "white wine")])
    assert (done.stored, done.deleted, done.refused) == (1, 1, {})
    assert {name: document["body"] for name, document in index.documents.items()} == {"b": "white wine"}


MAPPINGS = [
    ("strict_dynamic_mapping_exception", "mapping set to strict, dynamic introduction of [vbucket] within [_doc]"),
    ("illegal_argument_exception", "pipeline with id [gone] does not exist"),
    ("illegal_argument_exception", "Limit of total fields [1000] has been exceeded"),
    ("mapper_parsing_exception", "failed to parse field [seqno] of type [short] in document with id 'a'"),
]


@pytest.mark.parametrize(("kind", "reason"), MAPPINGS)
def test_a_mapping_that_takes_no_document_fails_the_batch_and_deletes_none(
    served: Served, kind: str, reason: str
) -> None:
    client, index = served
    index.poison, index.refusal = "wine", (kind, reason)
    hasty = SearchServer(client.server.url, retry_seconds=0.0)
    told = pytest.raises(SearchRefused, match=f"1 documents are refused: 400: {re.escape(reason)}")
    with closing(SearchClient(hasty)) as impatient, told:
        impatient.bulk([item(b"a", 3)])


UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"dynamic": "strict", "properties": {}}, r"has no field key in its mapping, and adds none \(dynamic: strict\)"),
    (
        {"dynamic": "false", "properties": {}},
        r"has no field key in its mapping, and adds none \(dynamic: false\): remove it",
    ),
    (
        {"properties": {"vbucket": {"type": "text"}}},
        'has text as its field vbucket, .* make it anew with "vbucket": {"ty',
    ),
    ({"properties": {"generation": {"type": "long", "index": False}}}, "is not searched by its field generation"),
]


@pytest.mark.parametrize(("mapping", "problem"), UNFIT)
def test_an_index_in_which_documents_are_not_found_by_their_fields_is_refused(
    served: Served, mapping: dict[str, Any], problem: str
) -> None:
    """Documents of a lost branch would stay: nothing is found in it by vbucket and generation."""
    client, index = served
    index.mapping = mapping
    for look in (client.prepare, lambda: client.check(index.uuid)):
        with pytest.raises(SearchRefused, match=f"index orders {problem}"):
            look()


def test_fields_that_the_server_adds_by_itself_need_no_mapping(served: Served) -> None:
    client, index = served
    index.mapping = {}
    assert client.prepare() == f"{index.uuid} h0 h1"


def test_a_deletion_that_is_refused_fails_the_batch_whatever_the_status(served: Served) -> None:
    """There is nothing in it that a server could refuse for good, and the document would be found for good."""
    client, index = served
    client.bulk([item(b"a", 1)])
    index.block = 400, "routing_missing_exception"
    hasty = SearchServer(client.server.url, retry_seconds=0.0)
    with closing(SearchClient(hasty)) as impatient, pytest.raises(SearchRefused, match="400: not now"):
        impatient.bulk([item(b"a", 2, None)])
    index.block = None


def test_an_index_that_is_gone_is_not_made_anew_with_batches_missing(served: Served) -> None:
    client, index = served
    known = client.prepare(batches=3)
    assert known == client.check(known)
    index.uuid = None
    gone = "index orders is gone, and the batches that were in it are not: look at the address, or index anew"
    with pytest.raises(SearchRefused, match=gone):
        client.prepare(batches=3)
    with pytest.raises(SearchRefused, match=gone):
        client.check(known)
    assert index.uuid is None
    assert client.prepare() == f"{index.uuid} h0 h1" != known


def test_an_index_that_was_made_anew_is_another_one_though_called_the_same(served: Served) -> None:
    """The server makes one by itself, of the first document that comes for one that is missing."""
    client, index = served
    known = client.check(None)
    index.uuid = None
    client.bulk([item(b"a", 1)])
    with pytest.raises(SearchRefused, match=r"another index is called orders by now.*remove it and index anew"):
        client.check(known)


def test_an_index_into_which_an_older_snapshot_was_restored_is_refused_though_it_keeps_its_id(served: Served) -> None:
    client, index = served
    known = client.check(None)
    index.histories = ["h0", "h2"]
    with pytest.raises(SearchRefused, match=r"index orders was put back to an older state.*remove it and index anew"):
        client.check(known)


def test_a_login_that_may_not_see_histories_knows_an_index_by_its_id(served: Served) -> None:
    client, index = served
    known = client.check(None)
    index.histories = None
    assert client.check(known) == known and client.check(None) == index.uuid
    index.histories = ["h0", "h1"]
    assert client.check(index.uuid) == known


def test_a_shard_without_a_copy_that_leads_is_waited_for_before_its_history_is_told(served: Served) -> None:
    client, index = served
    known = client.check(None)
    index.histories = ["h0"]
    hasty = SearchServer(client.server.url, retry_seconds=0.0)
    with closing(SearchClient(hasty)) as impatient, pytest.raises(ConnectionLost, match="1 shards of index orders are"):
        impatient.check(known)


@pytest.mark.parametrize("kept", [None, "60s", "59m", "3599s", "10micros", "-1", "0"])
def test_an_index_that_forgets_deletions_before_an_hour_is_told_to_keep_them(served: Served, kept: str | None) -> None:
    """A late bulk would bring a document back whose deletion is forgotten."""
    client, index = served
    index.settings = {} if kept is None else {"gc_deletes": kept}
    client.keep_deletions()
    assert index.settings == {"gc_deletes": "1h"}


@pytest.mark.parametrize("kept", ["1h", "60m", "3600s", "2d"])
def test_an_index_that_keeps_deletions_for_an_hour_stays_as_it_is(served: Served, kept: str) -> None:
    client, index = served
    index.settings, index.keeps_settings = {"gc_deletes": kept}, True
    client.keep_deletions()
    assert index.settings == {"gc_deletes": kept}


def test_an_index_that_forgets_deletions_and_may_not_be_told_otherwise_is_refused(served: Served) -> None:
    client, index = served
    index.settings, index.keeps_settings = {}, True
    advice = r"index orders forgets deletions after 60s.*set its index\.gc_deletes to 1h, or let.*\(403: no permissions"
    with pytest.raises(SearchRefused, match=advice):
        client.keep_deletions()


def test_a_new_folder_takes_no_index_with_documents_of_another_one(served: Served) -> None:
    """Documents that left the bucket would stay, and those of a higher generation would never be replaced."""
    client, _ = served
    client.bulk([item(b"a", version(2, 1))])
    client.prepare(is_begun=True)
    with pytest.raises(SearchRefused, match="index orders has 1 documents, of which this folder knows nothing"):
        client.prepare()


def test_a_shard_that_is_away_is_waited_for_before_all_is_taken_for_removed(served: Served) -> None:
    client, index = served
    client.bulk([item(b"old", version(1, 9))])
    index.away = 2
    hasty = SearchServer(client.server.url, retry_seconds=0.0)
    told = pytest.raises(ConnectionLost, match="1 shards of index orders are away")
    with closing(SearchClient(hasty)) as impatient, told:
        impatient.remove_older(3, 2)
    assert client.remove_older(3, 2) == 1 and not index.documents


def test_hits_of_some_shards_are_not_shown_as_if_they_were_all(served: Served) -> None:
    client, index = served
    client.bulk([item(b"a", version(0, 1))])
    assert client.remove_older(3, 0) == 0  # searches see it from here on
    index.away = 2
    hasty, refused = SearchServer(client.server.url, retry_seconds=0.0), pytest.raises(ConnectionLost, match="503")
    with closing(SearchClient(hasty)) as impatient, refused:
        impatient.search("wine", limit=10, any_of=False)
    assert [hit.key for hit in client.search("wine", limit=10, any_of=False)] == [b"a"]


def test_an_index_tells_how_far_each_vbucket_is_in_it(served: Served) -> None:
    client, _ = served
    assert client.reach() == client.oldest() == {}
    documents = [(b"a", 3, 2, 7), (b"b", 3, 1, 90), (b"c", 5, 0, 4)]
    client.bulk(
        Item(key, version(generation, seqno), {"vbucket": vb, "generation": generation, "seqno": seqno, "body": ""})
        for key, vb, generation, seqno in documents
    )
    assert client.reach() == {3: (2, 90), 5: (0, 4)} and client.oldest() == {3: 1, 5: 0}


def test_a_body_that_is_too_large_is_halved_until_it_fits(served: Served) -> None:
    client, index = served
    index.largest = 700
    done = client.bulk([*(item(b"k%d" % n, n + 1) for n in range(9)), item(b"x", 99, "x" * 800)])
    assert done.stored == 9
    assert list(done.refused) == ["x"] and done.refused["x"].startswith("413: ")


def test_what_a_generation_left_behind_is_deleted_and_nothing_newer(served: Served) -> None:
    client, index = served
    client.bulk([item(b"old", version(1, 9)), item(b"new", version(2, 1)), item(b"raced", version(1, 8))])
    index.visible = dict(index.documents)
    assert client.remove_older(3, 2) == 2
    assert set(index.documents) == {"new"}
    assert client.bulk([item(b"old", version(1, 10))]).behind == 1


def test_deletions_whose_answer_was_lost_end_no_removal_of_a_vbucket(served: Served) -> None:
    """Sent again, the first thousand are refused as not newer; those behind them are still to be deleted."""
    client, index = served
    client.bulk(item(b"k%d" % n, version(1, n + 1)) for n in range(BULK_ITEMS + 5))
    index.unanswered = 1
    client.remove_older(3, 2)
    assert index.documents == {}


def test_deletions_whose_answer_was_lost_end_no_removal_of_a_collection(served: Served) -> None:
    client, index = served
    collected = SearchClient(replace(client.server, by_collection=True))
    document = {"body": "red wine", "vbucket": 3, "generation": 0, "collection_id": 8}
    items = (Item(b"k%d" % n, n + 1, document | {"seqno": n + 1}, 8) for n in range(BULK_ITEMS + 5))
    with closing(collected) as client:
        client.bulk(items)
        index.unanswered = 1
        client.remove_collection(8)
    assert index.documents == {}


def test_a_login_is_sent_and_a_wrong_one_told_in_a_line() -> None:
    with search_server() as (url, index):
        index.login = login("me", "secret")
        with closing(SearchClient(SearchServer(url, "me", "secret"))) as client:
            client.prepare()
            client.prepare()  # it exists by now
        told = pytest.raises(SearchRefused, match=r"127\.0\.0\.1:\d+: it answers 401: who are you\?")
        with closing(SearchClient(SearchServer(url, "me", "wrong"))) as client, told:
            client.prepare()
    assert "secret" not in repr(SearchServer(url, "me", "secret"))


def test_nobody_there_is_an_error_that_passes() -> None:
    nobody = SearchServer("http://127.0.0.1:1/orders", retry_seconds=0.0)
    with closing(SearchClient(nobody)) as client, pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1"):
        client.prepare()


@pytest.mark.parametrize("url", ["127.0.0.1:9200/x", "http://h:9200", "ftp://h/x", "http://me:secret@h/x"])
def test_an_address_without_an_index_or_with_a_login_is_refused(url: str) -> None:
    with pytest.raises(OptionError) as refused:
        SearchServer(url)
    assert "secret" not in str(refused.value)
