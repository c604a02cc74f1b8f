"""Facts that a manifest keeps for good of the store's node: written down once, and there after a power cut."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from headwater.errors import StorageError
from headwater.node.storage.declarations import Declarations
from headwater.node.storage.retention import Retention
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


def test_the_history_that_a_bucket_keeps_outlives_a_power_cut_and_each_limit_changes_alone() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    assert not store.declarations.history
    for seconds, size, kept in ((60, None, (60, 0)), (None, 1 << 20, (60, 1 << 20)), (0, None, (0, 1 << 20))):
        store.declarations.keep_history(seconds, size)
        assert open_store(disk.crash(Random(1), lose=1.0)).declarations.history == Retention(*kept)
    store.declarations.keep_history(0, 0)
    assert b"history" not in store.log.manifest.content.encode(), "so that programs of before read it as ever"


def test_a_history_that_could_not_be_written_down_is_the_one_of_before() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    store.declarations.keep_history(60)
    disk.fail(1, forever=True)
    with pytest.raises(StorageError):
        store.declarations.keep_history(90)
    assert store.declarations.history == Retention(60)
