"""The choice of a position: in bytes, and in words."""

from __future__ import annotations

import pytest

from headwater.errors import OptionError
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.position import Position
from headwater.wire.manifest import EMPTY, Collection, CollectionsManifest, Scope

SHOP = Scope(8, "shop", (Collection(8, "orders"), Collection(9, "carts", 60)))
MANIFEST = CollectionsManifest(0xC, (*EMPTY.scopes, SHOP))


def test_the_choice_of_a_position_in_bytes() -> None:
    position = Position(3, 0xAB, 5, 5, 5, coverage=Coverage(12, collections=(8, 10)))
    expected = (
        '{"vbucket":3,"vb_uuid":"00000000000000ab","seqno":5,"snapshot_start":5,"snapshot_end":5,'
        '"collections":{"uid":"c","collections":["8","a"]}}'
    )
    assert position.to_json() == expected
    assert Coverage(12, scope=8).encode() == b'{"uid":"c","scope":"8"}'
    assert Coverage(12).encode() == b'{"uid":"c"}'


@pytest.mark.parametrize(
    "told",
    [
        *('""', "[]", '{"scope":"8"}', '{"uid":"x"}', '{"uid":12}', '{"uid":"c","scope":"100000000"}'),
        *('{"uid":"c","collections":[]}', '{"uid":"c","collections":["9","8"]}', '{"uid":"c","collections":["8","8"]}'),
        *('{"uid":"c","collections":8}', '{"uid":"c","collections":["8"],"scope":"8"}', '{"uid":"c","sid":5}'),
    ],
)
def test_a_choice_that_can_not_be_is_no_position(told: str) -> None:
    text = Position(3, 0xAB, 5, 5, 5).to_json()[:-1] + f',"collections":{told}}}'
    with pytest.raises(OptionError, match="saved position"):
        Position.from_json(text)


@pytest.mark.parametrize(
    ("coverage", "words"),
    [
        (Coverage(), "the whole bucket"),
        (Coverage(scope=8), "scope shop"),
        (Coverage(scope=11), "the scope with id 0xb, which is gone"),
        (Coverage(collections=(8,)), "collection shop.orders"),
        (Coverage(collections=(7, 8, 9)), "collections shop.orders, shop.carts, one that is gone (id 0x7)"),
    ],
)
def test_a_choice_in_words(coverage: Coverage, words: str) -> None:
    assert coverage.described(MANIFEST) == words


def test_the_same_choice_is_the_same_by_whichever_manifest_it_was_found() -> None:
    assert Coverage(1, collections=(8,)).same_choice(Coverage(2, collections=(8,)))
    assert not Coverage(1, collections=(8,)).same_choice(Coverage(1, collections=(8, 9)))
    assert not Coverage(1, scope=8).same_choice(Coverage(1)) and not Coverage(1).same_choice(None)


def test_what_is_gone_is_said_by_a_manifest_that_is_not_older() -> None:
    two = Coverage(12, collections=(8, 11))
    assert two.within(MANIFEST) == Coverage(12, collections=(8,)) and not two.has_gone(MANIFEST)
    assert two.within(EMPTY) == two and not two.has_gone(EMPTY)
    assert Coverage(12, collections=(11,)).has_gone(MANIFEST) and Coverage(12, scope=11).has_gone(MANIFEST)
    assert not Coverage(12, scope=8).has_gone(MANIFEST) and not Coverage(12).has_gone(MANIFEST)


def test_a_request_quotes_the_purge_seqno_that_its_reader_saw() -> None:
    assert Coverage(0xB4, collections=(0, 0x8A)).encode(81021) == (
        b'{"uid":"b4","collections":["0","8a"],"purge_seqno":"81021"}'
    )
    assert Coverage(1).encode(0) == b'{"uid":"1"}'
