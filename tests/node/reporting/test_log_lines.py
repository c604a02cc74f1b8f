"""The log of a node: a line an event, by levels for all or a part of it, as text or as JSON."""

from __future__ import annotations

import ast
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater.node
from headwater import testing
from headwater.errors import OptionError
from headwater.node.reporting.log_lines import EVENTS, JsonLine, LogHandler, OneLine, begin, event, parse_levels

FOLDER = Path(headwater.node.__file__).parent


def record(message: str, **extra: object) -> logging.LogRecord:
    return logging.getLogger("headwater.node.replication.dialer").makeRecord(
        "headwater.node.replication.dialer", logging.WARNING, "f.py", 1, message, (), None, extra=extra
    )


def test_a_line_of_json_has_the_event_and_what_is_known_of_it() -> None:
    told = json.loads(
        JsonLine().format(record("no\nanswer", **event("replication.failed", producer="a:1/b", message="x")))
    )
    assert told.pop("time").endswith("Z")
    assert told == {
        "level": "warning",
        "module": "replication.dialer",
        "event": "replication.failed",
        "message": "no\nanswer",
        "producer": "a:1/b",
    }


def test_neither_form_lets_a_peer_begin_a_line_of_its_own() -> None:
    for form in (JsonLine(), OneLine()):
        line = form.format(record("a\nb\x1b[31m\u2028c", **event("peer.fault")))
        assert line.splitlines() == [line] and "\x1b" not in line


def test_levels_are_for_all_or_for_a_part() -> None:
    assert parse_levels("info") == {"": "info"}
    assert parse_levels("error, replication=info,storage.recovery=debug") == {
        "": "error",
        "replication": "info",
        "storage.recovery": "debug",
    }


@pytest.mark.parametrize("wrong", ["loud", "", "info,debug", "replication=", "=info", "a b=info", "x=info,x=debug"])
def test_what_is_no_level_is_refused(wrong: str) -> None:
    with pytest.raises(OptionError, match="log-level"):
        parse_levels(wrong)


def test_a_part_may_tell_more_than_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    root, out = logging.Logger("root"), io.StringIO()
    monkeypatch.setattr(logging, "root", root)
    monkeypatch.setattr(logging.Logger, "manager", logging.Manager(root))  # type: ignore[arg-type]
    begin("warning,replication=info", "json", out)
    for name in ("headwater.node.replication.dialer", "headwater.node.upkeep.scrubber"):
        log = logging.getLogger(name)
        log.info("%s", name, extra=event("node.ready"))
        log.debug("not this", extra=event("node.ready"))
    assert [json.loads(line)["module"] for line in out.getvalue().splitlines()] == ["replication.dialer"]


def test_a_wrong_level_is_a_mistake_of_use() -> None:

    arguments = [sys.executable, "-m", "headwater", "serve", "--log-level", "loud"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert 'option "log-level"' in done.stderr and "debug, info, warning, error" in done.stderr


def calls(path: Path) -> Iterator[tuple[int, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            value, name = node.func.value, node.func.attr
            if (
                isinstance(value, ast.Name)
                and value.id == "log"
                and name
                in (
                    "debug",
                    "info",
                    "warning",
                    "error",
                    "critical",
                    "exception",
                )
            ):
                yield node.lineno, node


def test_each_line_of_the_node_has_an_event() -> None:
    without = [
        f"{path.relative_to(FOLDER)}:{line}"
        for path in FOLDER.rglob("*.py")
        for line, call in calls(path)
        if not any(keyword.arg == "extra" for keyword in call.keywords)
    ]
    assert without == []


def test_each_event_is_used_and_none_is_made_up() -> None:
    named = {
        node.args[0].value
        for path in FOLDER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        # `log_event` where `event` is something else, as among those of a protocol.
        and node.func.id in ("event", "log_event", "Warnings", "RefusalLog")
        if node.args and isinstance(node.args[0], ast.Constant)
    }
    assert named | {"peer.fault", "dcp.refused"} == set(EVENTS)
    with pytest.raises(KeyError):
        event("made.up")


def test_a_node_tells_its_life_in_json() -> None:
    with testing.node(vbuckets=1, log_format="json", log_level="info") as node:
        assert node.stop() == 0
        told = [json.loads(line) for line in node.log.splitlines()]
    events = [each["event"] for each in told]
    assert events == ["node.ready", "node.stopping", "node.stopped"]
    assert told[0]["port"] == node.port and told[0]["level"] == "info"


def test_with_a_log_of_json_the_line_ready_is_json_whatever_the_level(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headwater", "serve", "--port", "0", "--http-port", "0", "--vbuckets", "2"]
    command += ["--log-format", "json", "--log-level", "error", "--data", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        process.terminate()
    assert (ready["event"], ready["level"], ready["host"]) == ("node.ready", "info", "127.0.0.1")
    assert ready["message"] == f"ready on 127.0.0.1:{ready['port']}"
    assert (ready["bucket"], ready["vbuckets"]) == ("default", 2)
    assert ready["http"] != ready["port"] > 0 and "tls" not in ready


class FullDisk(io.StringIO):
    """A log on a disk that has no room, or has some again."""

    is_full = True

    def write(self, text: str) -> int:
        if self.is_full:
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_lines_that_a_full_disk_does_not_take_are_counted_and_no_traceback_is_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = FullDisk()
    handler = LogHandler(log)
    for number in range(3):
        handler.handle(record(f"line {number}"))
    log.is_full = False
    handler.handle(record("room again"))
    first, second = log.getvalue().splitlines()
    assert first.endswith("did not take them: 3") and second.endswith("room again")
    assert capsys.readouterr().err == ""
