"""gomemcached follows nodes through crashes, a rollback and a failover, driven as its users do; see README.md."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.interop.story import THROUGH_FAILOVER, WHAT, follow_through_everything, follow_through_failover
from tests.interop.toolchains import GO, go_program, needs, pinned

HERE = Path(__file__).parent
VERSION = pinned(HERE, "github.com/couchbase/gomemcached")
BY_THE_CALLER = "; the program reads maps, finds owners and goes on"
pytestmark = [pytest.mark.interop, pytest.mark.battery, needs(GO)]


def program() -> Callable[[int], Sequence[str]]:
    """The command of a port."""
    binary = go_program(HERE)
    return lambda port: [binary, str(port)]


@pytest.mark.program("gomemcached", VERSION, WHAT + BY_THE_CALLER)
def test_gomemcached_holds_what_the_node_holds_through_crash_and_rollback(
    tmp_path: Path, compared: Callable[[int], None]
) -> None:
    compared(follow_through_everything(program(), tmp_path))


@pytest.mark.program("gomemcached", VERSION, THROUGH_FAILOVER + BY_THE_CALLER)
def test_gomemcached_goes_on_at_the_owners_that_the_map_tells(tmp_path: Path, compared: Callable[[int], None]) -> None:
    compared(follow_through_failover(program(), tmp_path))
