"""Lists of users, as nodes tell each other."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.wire.users import LIST_BYTES_MAX, REVISION_MAX, UserEntry, UserList, UserListRefused

KEYS = dict.fromkeys(("sha512", "sha256", "sha1"), ("c2FsdA==", 15000, "c3RvcmVk", "c2VydmVy"))
TEXT = (
    b'{"cluster":"5a1c","removed":{"bob":8},"users":{"ann":{"keys":{'
    b'"sha1":["c2FsdA==",15000,"c3RvcmVk","c2VydmVy"],"sha256":["c2FsdA==",15000,"c3RvcmVk","c2VydmVy"],'
    b'"sha512":["c2FsdA==",15000,"c3RvcmVk","c2VydmVy"]},"revision":7,"roles":["read","write[b]"]}}}'
)
ANN = UserEntry(7, ("read", "write[b]"), KEYS)
KNOWN = UserList("5a1c", {"ann": ANN, "bob": UserEntry(8, is_removed=True)})
names = st.sampled_from(["ann", "bob", "carl"])
entries = st.builds(
    lambda revision, roles, gone: UserEntry(revision, is_removed=True) if gone else UserEntry(revision, roles, KEYS),
    st.integers(0, 5),
    st.sampled_from([(), ("read",), ("write",)]),
    st.booleans(),
)
lists = st.builds(UserList, st.sampled_from(["", "a"]), st.dictionaries(names, entries))


def test_a_list_is_this_text_both_ways() -> None:
    assert KNOWN.encode() == TEXT
    assert UserList.decode(TEXT) == KNOWN and UserList.decode(b'{"users":{}}') == UserList()


def test_each_change_has_the_next_revision_and_one_who_was_removed_is_remembered() -> None:
    changed = KNOWN.with_user("carl", ["read"], KEYS).without("ann").with_user("bob", [], KEYS)
    assert {name: (entry.revision, entry.is_removed) for name, entry in changed.entries.items()} == {
        "ann": (10, True),
        "bob": (11, False),
        "carl": (9, False),
    }
    assert list(changed.users) == ["bob", "carl"] and changed.revision == 11


@given(lists, lists, lists)
def test_whatever_order_changes_come_in_everybody_ends_with_the_same(a: UserList, b: UserList, c: UserList) -> None:
    def told(found: UserList) -> object:
        return {**found.as_json(), "cluster": ""}

    assert told(a.merged(b).merged(c)) == told(c.merged(a.merged(b))) == told(b.merged(c).merged(a))
    assert told(a.merged(a)) == told(a)
    assert UserList.decode(a.encode()) == a and (a.digest() == b.digest()) == (a.encode() == b.encode())


def test_what_became_of_each_user_is_told_in_words() -> None:
    keys = dict.fromkeys(("sha512", "sha256", "sha1"), ("c2FsdA==", 15000, "YQ==", "Yg=="))
    others = dict.fromkeys(keys, ("c2FsdA==", 15000, "Yg==", "YQ=="))
    before = (
        UserList().with_user("ann", ["read"], keys).with_user("bob", ["read"], keys).with_user("cy", ["read"], keys)
    )
    after = before.without("bob").with_user("ann", ["read", "write[b]"], keys).with_user("cy", ["read"], others)
    after = after.with_user("dora", [], keys)
    assert list(after.changes_since(before)) == [
        "removed user 'bob'",
        "gave user 'ann' other roles: read, write[b]",
        "gave user 'cy' another password",
        "added user 'dora': no roles",
    ]
    assert list(after.changes_since(after)) == []


def test_of_two_changes_made_at_once_a_removal_counts() -> None:
    kept, gone = UserList("", {"ann": ANN}), UserList("", {"ann": UserEntry(7, is_removed=True)})
    assert kept.merged(gone).users == gone.merged(kept).users == {}
    later = UserList("", {"ann": UserEntry(8, ("read",), KEYS)})
    assert list(gone.merged(later).users) == ["ann"]


def test_who_joins_a_list_of_none_has_all() -> None:
    assert UserList.of_all([]) == UserList()
    assert UserList.of_all([KNOWN, UserList("b", {})]).entries == KNOWN.entries


@pytest.mark.parametrize(
    "told",
    [
        {},
        [],
        {"users": []},
        {"users": {}, "cluster": 7},
        {"users": {"@cluster": {}}},
        {"users": {"a:b": ANN.as_json()}},
        {"users": {"x" * 129: ANN.as_json()}},
        {"users": {"ann": {**ANN.as_json(), "revision": -1}}},
        {"users": {"ann": {**ANN.as_json(), "revision": REVISION_MAX + 1}}},
        {"users": {"ann": {**ANN.as_json(), "revision": 1.5}}},
        {"users": {"ann": {**ANN.as_json(), "revision": True}}},
        {"users": {"ann": {**ANN.as_json(), "roles": "read"}}},
        {"users": {"ann": {**ANN.as_json(), "roles": [7]}}},
        {"users": {"ann": {**ANN.as_json(), "keys": {}}}},
        {"users": {"ann": {**ANN.as_json(), "keys": {**KEYS, "sha1": ["a", 0, "b", "c"]}}}},
        {"users": {"ann": {**ANN.as_json(), "keys": {**KEYS, "sha1": ["a", 1, "b"]}}}},
        {"users": {"ann": ANN.as_json()}, "removed": {"ann": 9}},
        {"users": {}, "removed": {"ann": "9"}},
    ],
)
def test_what_is_no_list_is_refused(told: object) -> None:
    with pytest.raises(UserListRefused):
        UserList.decode(json.dumps(told).encode())


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100, b" " * (LIST_BYTES_MAX + 1)])
def test_what_is_no_text_of_one_is_refused(text: bytes) -> None:
    with pytest.raises(UserListRefused):
        UserList.decode(text)


def test_above_the_last_revision_there_is_none() -> None:
    with pytest.raises(UserListRefused, match="no revision"):
        UserList("", {"ann": UserEntry(REVISION_MAX, (), KEYS)}).without("ann")


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else_happens(text: bytes) -> None:
    with suppress(UserListRefused):
        UserList.decode(text)
