"""Couchbase's Java DCP client follows a node through crashes and a rollback; see README.md."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.interop.story import (
    THROUGH_FAILOVER,
    WHAT,
    WITH_COLLECTIONS,
    follow_collections,
    follow_through_everything,
    follow_through_failover,
)
from tests.interop.toolchains import JAVA, java_program, needs, pinned

HERE = Path(__file__).parent
VERSION = pinned(HERE, "dcp-client")
pytestmark = [pytest.mark.interop, needs(JAVA)]


@pytest.mark.battery
@pytest.mark.program("Java dcp-client", VERSION, WHAT)
def test_the_java_client_holds_what_the_node_holds_through_crash_and_rollback(
    tmp_path: Path, compared: Callable[[int], None]
) -> None:
    path = java_program(HERE)

    def program(port: int) -> Sequence[str]:
        return ["java", "-cp", path, "headwater.DcpFollow", str(port)]

    compared(follow_through_everything(program, tmp_path))


@pytest.mark.battery
@pytest.mark.program("Java dcp-client", VERSION, WITH_COLLECTIONS)
def test_the_java_client_holds_what_each_collection_holds(tmp_path: Path, compared: Callable[[int], None]) -> None:
    path = java_program(HERE)

    def program(port: int, *names: str) -> Sequence[str]:
        return ["java", "-cp", path, "headwater.DcpFollow", str(port), *names]

    compared(follow_collections(program, tmp_path))


@pytest.mark.battery
@pytest.mark.program("Java dcp-client", VERSION, THROUGH_FAILOVER)
def test_the_java_client_finds_the_new_owners_of_a_dead_nodes_vbuckets(
    tmp_path: Path, compared: Callable[[int], None]
) -> None:
    path = java_program(HERE)

    def program(port: int) -> Sequence[str]:
        return ["java", "-cp", path, "headwater.DcpFollow", str(port)]

    compared(follow_through_failover(program, tmp_path))
