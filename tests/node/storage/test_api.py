"""The page that the node reads is the store's own: nothing on it is missing, or takes other arguments."""

import inspect
from pathlib import Path

import pytest

from headwater.node.storage.api import Storage
from headwater.node.storage.store import Store

METHODS = {name: member for name, member in vars(Storage).items() if inspect.isfunction(member) and name[0] != "_"}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_the_page_is_the_stores_with_the_same_arguments(name: str) -> None:
    expected, found = (inspect.signature(of).parameters.values() for of in (METHODS[name], getattr(Store, name)))
    assert [(each.name, each.kind) for each in found] == [(each.name, each.kind) for each in expected]


def test_the_parts_of_the_page_are_there_once_a_store_is_open(tmp_path: Path) -> None:
    store = Store.open(tmp_path, vbuckets=2, segment_bytes=1 << 20, arena_bytes=1 << 16)
    assert len(METHODS) == 19 and set(Storage.__annotations__) <= set(vars(store)) and not store.full
    store.close()
