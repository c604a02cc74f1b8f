"""The walk over all commands and mistakes: it leaves none out, and finds what is wrong."""

import dataclasses
import signal

import pytest

from harness.bad_typing import BASE, LEFT_OUT, Ended, Typing, _commands, wrong

LINE = Typing("get", ("get", "k"), {})
GOOD = Ended(1, "", "headwater: told\n", 1.0)


def test_every_command_has_a_line_or_a_reason() -> None:
    assert sorted([*BASE, *LEFT_OUT]) == sorted(_commands())


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"stderr": "headwater: told\nTraceback (most recent call last):\n"}, "a traceback"),
        ({"seconds": 61.0}, "61 s"),
        ({"status": 0}, "ended well"),
        ({"status": -9}, "status -9"),
        ({"stderr": ""}, "no line that begins with headwater:"),
        ({"stderr": "headwater: told\nWARNING\n"}, "lines of others"),
    ],
)
def test_what_is_wrong_is_found(changed: dict[str, object], told: str) -> None:
    assert wrong(LINE, GOOD) == []
    assert told in wrong(LINE, dataclasses.replace(GOOD, **changed))


def test_a_signal_has_a_status_of_its_own() -> None:
    stopped = dataclasses.replace(LINE, stop=signal.SIGINT)
    assert wrong(stopped, dataclasses.replace(GOOD, status=130)) == []
    assert wrong(stopped, GOOD) == ["status 1, expected 130"]
