"""The statuses that commands end with: each command has its own, and they are those of all."""

import pytest

from headwater.cli.exits import GENERAL, exits_of, own_exits
from tests.cli.test_forms import ALL

WITHOUT_OWN = {"bucket list", "collection list", "tls show", "config show", "seqnos"}


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_its_statuses(name: str) -> None:
    assert {0, 1, 2} <= set(exits_of(name, ALL[name])) <= set(GENERAL)
    assert bool(own_exits(ALL[name])) is (name not in WITHOUT_OWN)


def test_what_runs_until_it_is_ended_has_no_status_for_a_signal() -> None:
    assert set(exits_of("serve", ALL["serve"])) == set(exits_of("console", ALL["console"])) == {0, 1, 2}
    assert {130, 143} <= set(exits_of("load", ALL["load"]))
