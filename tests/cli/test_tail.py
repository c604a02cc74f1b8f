import json
import signal
import subprocess
import sys

import pytest

from headwater import testing
from tests.cli.support import Run


def test_tail_shows_each_kind_of_change_once(run: Run) -> None:
    run("set", "tailed", '{"a": 1}')
    run("set", "binary", "-", stdin=b"\xff\x00")
    run("set", "dropped", "v")
    run("delete", "dropped")
    rows = [json.loads(line) for line in run("tail", "--once", "--json")[1].splitlines()]
    by_key = {row["key"]: row for row in rows}
    assert len(by_key) == len(rows)
    assert (by_key["tailed"]["event"], by_key["tailed"]["value"]) == ("mutation", {"a": 1})
    assert by_key["binary"]["base64"] == "/wA="
    assert by_key["dropped"]["event"] == "deletion" and "value" not in by_key["dropped"]


def test_tail_for_people_cuts_long_values_and_can_leave_them_out(run: Run) -> None:
    run("set", "long", "x" * 200)
    line = next(line for line in run("tail", "--once")[1].splitlines() if " long " in line)
    assert line.endswith("x" * 160 + "... (40 bytes more)")
    short = next(line for line in run("tail", "--once", "--keys-only")[1].splitlines() if line.endswith(" long"))
    assert short.split()[1:] == ["mutation", "long"]


def test_tail_from_now_shows_nothing_older(run: Run) -> None:
    run("set", "older", "v")
    assert run("tail", "--from", "now", "--once") == (0, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_tail_follows_until_a_signal_and_ends_well(node: testing.Node, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "headwater", "tail", "--node", node.url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with node.client() as client:
        client.set("followed", str(number))
    assert process.stdout is not None
    while "followed" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (0, "")
