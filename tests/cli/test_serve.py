import os
import signal
import subprocess
import sys
from pathlib import Path

from headwater import testing


def test_serve_says_ready_keeps_what_it_was_given_and_stops_in_order(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "headwater",
        "serve",
        "--port",
        "0",
        "--vbuckets",
        "4",
        "--data",
        str(tmp_path / "s"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    ready = process.stdout.readline().split()
    assert ready[0] == "ready"
    environment = {**os.environ, "HEADWATER_NODE": f"couchbase://{ready[1]}/default"}
    stored = [sys.executable, "-m", "headwater", "set", "k", "v"]
    assert subprocess.run(stored, env=environment, capture_output=True, timeout=240, check=False).returncode == 0
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=240)
    assert (process.returncode, told) == (0, "")


def test_a_port_that_is_taken_is_told_in_one_line(node: testing.Node, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headwater", "serve", "--port", str(node.port), "--data", str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2 and "port" in done.stderr and done.stdout == ""
    assert done.stderr.startswith("headwater: ") and done.stderr.count("\n") == 1


def test_a_store_that_is_in_use_is_told_in_one_line(node: testing.Node) -> None:
    command = [sys.executable, "-m", "headwater", "serve", "--port", "0", "--data", str(node.data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1 and done.stderr.startswith("headwater: ") and done.stderr.count("\n") == 1
