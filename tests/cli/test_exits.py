"""The statuses that commands end with: each command has its own, and they are those of all."""

from headwater.cli.exits import EXITS, GENERAL, exits_of
from tests.cli.test_forms import ALL


def test_every_command_has_its_statuses() -> None:
    assert list(EXITS) == list(ALL)
    assert all({0, 1, 2} <= set(exits_of(name)) <= set(GENERAL) for name in ALL)


def test_what_runs_until_it_is_ended_has_no_status_for_a_signal() -> None:
    assert set(exits_of("serve")) == set(exits_of("console")) == {0, 1, 2}
    assert {130, 143} <= set(exits_of("load"))
