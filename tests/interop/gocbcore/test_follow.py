"""gocbcore's DCPAgent follows a node through crashes and a rollback; see README.md."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.interop.story import (
    EVERY_VERSION,
    HISTORIES,
    THROUGH_FAILOVER,
    WHAT,
    WITH_COLLECTIONS,
    follow_collections,
    follow_every_version,
    follow_histories,
    follow_through_everything,
    follow_through_failover,
)
from tests.interop.toolchains import GO, go_program, needs, pinned

HERE = Path(__file__).parent
VERSION = pinned(HERE, "github.com/couchbase/gocbcore/v10")
pytestmark = [pytest.mark.interop, needs(GO)]


@pytest.mark.battery
@pytest.mark.program("gocbcore DCPAgent", VERSION, WHAT)
def test_gocbcore_holds_what_the_node_holds_through_crash_and_rollback(
    tmp_path: Path, compared: Callable[[int], None]
) -> None:
    binary = go_program(HERE)

    def program(port: int) -> Sequence[str]:
        return [binary, str(port)]

    compared(follow_through_everything(program, tmp_path))


@pytest.mark.battery
@pytest.mark.program("gocbcore DCPAgent", VERSION, WITH_COLLECTIONS)
def test_gocbcore_holds_what_each_collection_holds(tmp_path: Path, compared: Callable[[int], None]) -> None:
    binary = go_program(HERE)

    def program(port: int, *names: str) -> Sequence[str]:
        return [binary, str(port), "collections", *names]

    compared(follow_collections(program, tmp_path))


@pytest.mark.battery
@pytest.mark.program("gocbcore DCPAgent", VERSION, EVERY_VERSION)
def test_gocbcore_gets_every_version_of_a_document(tmp_path: Path, compared: Callable[[int], None]) -> None:
    binary = go_program(HERE)

    def program(port: int) -> Sequence[str]:
        return [binary, str(port), "versions"]

    compared(follow_every_version(program, tmp_path))


@pytest.mark.battery
@pytest.mark.program("gocbcore DCPAgent", VERSION, HISTORIES)
def test_gocbcore_gets_every_version_of_collections_that_have_a_history(
    tmp_path: Path, compared: Callable[[int], None]
) -> None:
    binary = go_program(HERE)

    def program(port: int) -> Sequence[str]:
        return [binary, str(port), "versions"]

    compared(follow_histories(program, tmp_path))


@pytest.mark.battery
@pytest.mark.program("gocbcore DCPAgent", VERSION, f"{THROUGH_FAILOVER}; the program opens what ended again")
def test_gocbcore_finds_the_new_owners_of_a_dead_nodes_vbuckets(
    tmp_path: Path, compared: Callable[[int], None]
) -> None:
    binary = go_program(HERE)

    def program(port: int) -> Sequence[str]:
        return [binary, str(port)]

    compared(follow_through_failover(program, tmp_path))
