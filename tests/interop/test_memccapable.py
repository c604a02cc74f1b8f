"""libmemcached's conformance test of the binary protocol, where it is installed (Debian: libmemcached-tools)."""

import shutil
import subprocess

from headwater import testing

PROGRAM = shutil.which("memccapable")

if PROGRAM is not None:

    def test_all_27_binary_tests_of_memccapable_pass() -> None:
        with testing.node(vbuckets=4) as node:
            command = [str(PROGRAM), "-b", "-h", node.host, "-p", str(node.port)]
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stdout.count("[pass]") == 27, done.stdout + done.stderr
        assert "All tests passed" in done.stdout
