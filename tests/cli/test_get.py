import json

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


def test_bytes_that_are_no_text_are_told_as_json_can(run: Run) -> None:
    run("set", "raw", "-", stdin=b"\xff\x00")
    assert json.loads(run("get", "--json", "raw")[1])["value"] == "\\xff\x00"
