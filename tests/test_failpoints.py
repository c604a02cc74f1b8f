"""Named places for faults."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.errors import OptionError
from headwater.failpoints import FAILPOINTS, InjectedFault, arm, armed, failpoint, passes

SOURCES = Path(__file__).parents[1] / "src" / "headwater"


def test_a_point_fires_at_its_turn_and_only_then() -> None:
    with armed("log.append=raise@3"):
        failpoint("log.append")
        failpoint("log.before_sync")
        failpoint("log.append")
        with pytest.raises(InjectedFault, match=r"log\.append"):
            failpoint("log.append")
        failpoint("log.append")
        assert passes("log.append") == 4
        assert passes("log.before_sync") == 0
    failpoint("log.append")


@pytest.mark.parametrize(("action", "says"), [("eio", "injected"), ("enospc", "injected")])
def test_disk_errors_can_be_injected(action: str, says: str) -> None:
    with armed(f"log.append={action}"), pytest.raises(OSError, match=says):
        failpoint("log.append")


def test_the_action_kill_is_sigkill() -> None:
    code = "from headwater.failpoints import failpoint; failpoint('log.append'); print('on'); failpoint('log.append')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"HEADWATER_FAILPOINTS": "log.append=kill@2"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "text", ["log.append", "log.append=explode", "nowhere=kill", "log.append=kill@0", "log.append=kill@x"]
)
def test_what_is_not_understood_is_refused_with_what_would_be(text: str) -> None:
    with pytest.raises(OptionError, match="HEADWATER_FAILPOINTS"):
        arm(text)


def test_the_table_names_exactly_the_points_of_the_source() -> None:
    sources = [path.read_text() for path in SOURCES.rglob("*.py") if path.name != "failpoints.py"]
    passed = {name for text in sources for name in re.findall(r'failpoint\(\s*"([\w.]+)"', text)}
    named = {name for text in sources for name in re.findall(r'"(\w+\.\w+)"', text)}
    assert passed <= set(FAILPOINTS) <= named
