"""libmemcached's conformance test of both protocols, where it is installed (Debian: libmemcached-tools)."""

import shutil
import subprocess

import pytest

from headwater import testing

PROGRAM = shutil.which("memccapable")

if PROGRAM is not None:

    @pytest.mark.parametrize("protocol", ["-b", "-a"], ids=["binary", "text"])
    def test_all_27_tests_of_memccapable_pass(protocol: str) -> None:
        with testing.node(vbuckets=4) as node:
            command = [str(PROGRAM), protocol, "-h", node.host, "-p", str(node.port)]
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0 and done.stdout.count("[pass]") == 27, done.stdout + done.stderr
        assert "All tests passed" in done.stdout
