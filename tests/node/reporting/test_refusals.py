"""Lines about refusals: each peer has its share of the log."""

from __future__ import annotations

import logging

import pytest

from headwater.node.reporting.refusals import LINES_MAX, PEERS_MAX, SECONDS, RefusalLog


@pytest.fixture(autouse=True)
def _at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headwater.node")


def test_each_host_has_so_many_lines_in_a_minute_whatever_its_port(caplog: pytest.LogCaptureFixture) -> None:
    log = RefusalLog()
    for port in range(LINES_MAX + 5):
        log.tell(f"10.0.0.1:{port}", ["no"], now=5.0)
    log.tell("[::1]:7", ["no"], now=5.0)
    assert caplog.messages[-2:] == [f"10.0.0.1:{LINES_MAX - 1}: no", "[::1]:7: no"]
    assert len(caplog.messages) == LINES_MAX + 1 and {record.levelname for record in caplog.records} == {"INFO"}


def test_the_next_minute_tells_how_many_were_left_out_once(caplog: pytest.LogCaptureFixture) -> None:
    log = RefusalLog()
    log.tell("a:1", ["no"] * (LINES_MAX + 5), now=0.0)
    caplog.clear()
    log.tell("a:1", ["yes"], now=SECONDS - 0.1)
    log.tell("a:1", ["first", "second"], now=SECONDS)
    assert caplog.messages == ["a:1: first (6 lines left out)", "a:1: second"]


def test_of_peers_only_the_latest_are_remembered(caplog: pytest.LogCaptureFixture) -> None:
    log = RefusalLog()
    for number in range(PEERS_MAX + 1):
        log.tell(f"host{number}:1", ["no"] * LINES_MAX, now=0.0)
    caplog.clear()
    log.tell(f"host{PEERS_MAX}:1", ["no"], now=1.0)
    log.tell("host0:1", ["forgotten"], now=1.0)
    assert caplog.messages == ["host0:1: forgotten"]
