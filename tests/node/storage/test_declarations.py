"""Facts that a manifest keeps for good of the store's node: written down once, and there after a power cut."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from headwater.errors import StorageError
from headwater.node.storage.declarations import Declarations
from headwater.testing.faults import FaultyDisk
from tests.node.storage.model import open_store

FACTS: dict[str, tuple[Callable[[Declarations], None], Callable[[Declarations], bool]]] = {
    "member": (Declarations.join, lambda known: known.is_member),
    "users": (Declarations.keep_users, lambda known: known.has_users),
}


@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_that_was_declared_outlives_a_power_cut(fact: str) -> None:
    declare, is_so = FACTS[fact]
    disk = FaultyDisk()
    store = open_store(disk)
    assert not is_so(store.declarations)
    declare(store.declarations)
    assert is_so(open_store(disk.crash(Random(1), lose=1.0)).declarations)


@pytest.mark.parametrize("declare", [Declarations.join, Declarations.keep_users, Declarations.use_collections])
def test_a_fact_is_written_down_once(declare: Callable[[Declarations], None]) -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    before = disk.calls
    declare(store.declarations)
    once = disk.calls
    declare(store.declarations)
    assert before < once == disk.calls


def test_a_fact_that_could_not_be_written_down_is_none() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    disk.fail(1, forever=True)
    with pytest.raises(StorageError):
        store.declarations.join()
    assert not store.declarations.is_member
