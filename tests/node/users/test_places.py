"""The rights of a user who has roles in parts of a bucket."""

from __future__ import annotations

from headwater.accounts.roles import read_grants
from headwater.node.users.places import Places
from headwater.wire.manifest import EMPTY, CollectionsManifest
from headwater.wire.privilege import LOGIN, MONITOR, READ, STREAM, WRITE
from headwater.wire.status import Status

SHOP = EMPTY.with_scope("shop", 8).with_collection("shop", "carts", None, 9).with_collection("shop", "orders", None, 10)
BOTH = SHOP.with_scope("desk", 11).with_collection("desk", "notes", None, 12)


def places(text: str, rights: int = int(LOGIN)) -> Places:
    return Places(rights, read_grants(text))


def test_rights_of_bucket_scope_and_collection_add_up() -> None:
    found = places("read[b:shop],write[b:shop:carts]", int(LOGIN | MONITOR))
    whole = LOGIN | MONITOR
    assert [found.in_collection(BOTH, each) for each in (0, 9, 10, 12)] == [
        whole,
        whole | READ | WRITE,
        whole | READ,
        whole,
    ]
    assert found.in_scope(BOTH, 8) == whole | READ and found.in_scope(BOTH, 11) == whole
    assert found.anywhere == whole | READ | WRITE


def test_a_role_is_for_whatever_has_the_name_now() -> None:
    found = places("read[b:shop:carts]")
    assert found.in_collection(SHOP, 9) & READ
    again = SHOP.without_collection("shop", "carts").with_collection("shop", "carts", None, 13)
    assert not found.in_collection(again, 9) & READ and found.in_collection(again, 13) & READ


def names(manifest: CollectionsManifest) -> list[str]:
    return [f"{scope.name}.{collection.name}" for scope, collection in manifest.each_collection()]


def test_only_those_parts_are_seen_in_which_there_is_a_right() -> None:
    assert names(places("write[b:shop:carts]").visible(BOTH)) == ["shop.carts"]
    assert names(places("read[b:desk],read[b:_default]").visible(BOTH)) == ["_default._default", "desk.notes"]


def test_a_stream_carries_nothing_that_may_not_be_streamed() -> None:
    found = places("stream[b:shop:carts],read[b:shop:orders],stream[b:desk]")

    def status(*collections: int, scope: int | None = None) -> int | None:
        denied = found.denied(BOTH, collections or None, scope)
        return None if denied is None else denied[1]

    assert status(9) is None and status(12) is None and status(9, 12) is None and status(scope=11) is None
    assert status() == status(10) == status(9, 10) == status(scope=8) == Status.EACCESS
    assert status(0) == status(9, 0) == Status.UNKNOWN_COLLECTION
    assert status(scope=0) == Status.UNKNOWN_SCOPE
    assert places("read[b:shop]", int(LOGIN | STREAM)).denied(BOTH, None, None) is None
