"""libmemcached's conformance test of both protocols, where it is installed (Debian: libmemcached-tools)."""

import shutil
import subprocess

import pytest

from headwater import testing
from tests.interop.toolchains import LIBMEMCACHED, needs


def _version() -> str:
    """memccapable has no word for its own; memcstat, which comes with it, has."""
    if shutil.which("memcstat") is None:
        return "-"
    told = subprocess.run(["memcstat", "--version"], check=False, capture_output=True, text=True, timeout=60)
    return told.stdout.split()[-1].strip("v()")  # memstat v1.1 (libmemcached v1.1.4)


pytestmark = [pytest.mark.interop, needs(LIBMEMCACHED)]
VERSION = _version()


@pytest.mark.parametrize(
    "protocol",
    [
        pytest.param("-b", id="binary", marks=pytest.mark.program("memccapable", VERSION, "its 27 tests, binary")),
        pytest.param("-a", id="text", marks=pytest.mark.program("memccapable", VERSION, "its 27 tests, text")),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_all_27_tests_of_memccapable_pass(protocol: str, workers: int) -> None:
    with testing.node(vbuckets=4, workers=workers) as node:
        command = ["memccapable", protocol, "-h", node.host, "-p", str(node.port)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and done.stdout.count("[pass]") == 27, done.stdout + done.stderr
    assert "All tests passed" in done.stdout
