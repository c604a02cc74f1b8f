"""Waits are told, and not too often."""

from __future__ import annotations

import logging
import math

import pytest

from headwater.client.waiting import WaitTeller
from headwater.errors import ConnectionLost, NotMyVbucket

GONE = ConnectionLost("10.0.0.1:11210", "connection refused")
MOVING = NotMyVbucket("vbucket 7 has no active node")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_node_that_does_not_answer_is_named_at_once_and_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headwater.client.waiting")
    wait = WaitTeller(100.0, 60.0)
    for now in (100.0, 100.5, 109.0, 110.0, 115.0, 121.0):
        wait.tell(GONE, now)
    assert said(caplog) == [
        f"10.0.0.1:11210: connection refused; trying again, for up to {left} s" for left in (60, 50, 39)
    ]


def test_of_a_vbucket_that_moves_nothing_is_said_for_a_second(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headwater.client.waiting")
    wait = WaitTeller(100.0, math.inf)
    wait.tell(MOVING, 100.9)
    assert said(caplog) == []
    wait.tell(MOVING, 101.0)
    assert said(caplog) == [f"{MOVING}; trying again, until it is there"]


def test_without_the_command_line_nobody_sees_it(capsys: pytest.CaptureFixture[str]) -> None:
    WaitTeller(100.0, 60.0).tell(GONE, 100.0)
    assert capsys.readouterr().err == ""
