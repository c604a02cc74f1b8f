import json
import subprocess
import sys

import pytest

from headwater import testing
from tests.cli.support import Run


def test_json_output_carries_cas_and_flags(run: Run) -> None:
    _, told, _ = run("set", "flagged", "v", "--flags", "7")
    assert json.loads(run("get", "--json", "flagged")[1]) == {
        "key": "flagged",
        "cas": int(told.split()[1]),
        "flags": 7,
        "value": "v",
    }


def test_what_is_not_there_is_told_in_one_line_with_status_1(run: Run) -> None:
    status, shown, told = run("get", "nobody")
    assert (status, shown) == (1, "")
    assert told.startswith("headwater: ") and told.count("\n") == 1


def test_a_missing_document_and_a_missing_bucket_are_told_apart(run: Run, node: testing.Node) -> None:
    _, _, missing = run("get", "nobody")
    _, _, bucket = run("get", "nobody", "--node", node.url.replace("/default", "/nosuch"))
    assert "nobody" in missing and "There is no such document" in missing and "such bucket" not in missing
    assert bucket.count('"nosuch"') == 1 and "no such bucket" in bucket
    assert "key" not in bucket.lower().replace("key_enoent", "") and "document" not in bucket


def test_bytes_that_are_no_text_are_told_as_json_can(run: Run) -> None:
    run("set", "raw", "-", stdin=b"\xff\x00")
    found = json.loads(run("get", "--json", "raw")[1])
    assert found["base64"] == "/wA=" and "value" not in found


@pytest.mark.parametrize("value", [b"\x00\xff\r\n\x1b[31m", b"no line end", b""])
def test_a_pipe_gets_the_value_byte_for_byte(node: testing.Node, value: bytes) -> None:
    with node.client() as bucket:
        bucket.set("piped", value)
    command = [sys.executable, "-m", "headwater", "get", "piped", "--node", node.url]
    assert subprocess.run(command, capture_output=True, timeout=240, check=True).stdout == value


def test_a_terminal_gets_text_on_a_line_and_no_control_characters(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("set", "red", "-", stdin=b"\x1b[31mred\x9b\n\tnext")
    monkeypatch.setattr("headwater.cli.get.is_terminal", lambda: True)
    assert run("get", "red")[1] == "\\x1b[31mred\\x9b\n\tnext\n"


def test_a_key_that_is_no_text_is_typed_as_it_is(run: Run) -> None:
    """As Python has arguments that are no UTF-8."""
    assert run("set", "\udcff\udcfe", "value")[0] == 0
    assert run("get", "\udcff\udcfe")[:2] == (0, "value")
    assert run("delete", "\udcff\udcfe")[0] == 0
