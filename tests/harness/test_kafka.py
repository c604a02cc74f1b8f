"""The broker of the tests. Its jars are those of Ivy; tests/pipelines/test_publish.py needs all of it."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from harness.kafka import Broker


def test_a_broker_is_up_when_its_port_answers_and_ends_when_it_is_killed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        broker = Broker(tmp_path, port, [sys.executable, "-c", "import time; time.sleep(600)"])
        broker.start()
        assert broker.address == f"127.0.0.1:{port}"
        broker.kill()
        broker.kill()


def test_a_broker_that_does_not_come_up_names_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.kafka.PATIENCE_SECONDS", 0.0)
    broker = Broker(tmp_path, 1, [sys.executable, "-c", "pass"])
    with pytest.raises(AssertionError, match=r"broker\.log"):
        broker.start()
    broker.stop()
