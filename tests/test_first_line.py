"""One line before a traceback, where people see one: scripts, shells, IPython."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from headwater import load_ipython_extension
from headwater.errors import BadFrame, ConnectionLost, HeadwaterError, OptionError
from headwater.first_line import first_line, next_step

REFUSED = "headwater: 127.0.0.1:1: connection refused; no node listens there: start one (headwater serve), "
REFUSED += "or name another address"
FAIL = "from headwater.errors import ConnectionLost\nraise ConnectionLost('127.0.0.1:1', 'connection refused')\n"
SHOW = "from headwater.first_line import show\nshow()\n"


class AnalysisException(Exception):  # noqa: N818 -- as Spark's
    """As Spark's look."""

    __module__ = "pyspark.errors.exceptions.captured"


OF_SPARK = """[PYTHON_DATA_SOURCE_ERROR] Failed to plan: Traceback (most recent call last):
  File "channel.py", line 97, in connected
headwater.errors.ConnectionLost: 127.0.0.1:1: connection refused
 SQLSTATE: 38000"""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConnectionLost("127.0.0.1:1", "connection refused"), REFUSED),
        (AnalysisException(OF_SPARK), REFUSED),
        (HeadwaterError("one\ntwo"), "headwater: one two"),
        (HeadwaterError("couchbase://ann:secret@h is away"), "headwater: ...@h is away"),
        (AnalysisException("no table `nono`"), None),
        (RuntimeError("headwater.errors.ConnectionLost: the job's own words"), None),
    ],
)
def test_the_line_is_the_reason_of_an_error_that_is_ours(error: Exception, line: str | None) -> None:
    assert first_line(error) == line


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConnectionLost("h:1", "Name or service not known"), "; is the name right?"),
        (ConnectionLost("h:1", "the node closed the connection"), ""),
        (BadFrame("magic 0x48"), "; something answers there that speaks no memcached: is it a node, and its port?"),
        (OptionError("url", "x", "an address"), ""),
    ],
)
def test_an_error_that_does_not_say_it_gets_a_next_step(error: Exception, told: str) -> None:
    assert next_step(type(error).__name__, str(error)) == told


def stderr_of(code: str, *options: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-q", *options], input=code, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stderr.splitlines()


def test_a_script_shows_the_line_and_all_else_below_it() -> None:
    seen = stderr_of(SHOW + SHOW + FAIL, "-")
    assert seen[:2] == [REFUSED, "Traceback (most recent call last):"]
    assert seen[-1] == "headwater.errors.ConnectionLost: 127.0.0.1:1: connection refused"
    assert seen.count(REFUSED) == 1


def test_errors_of_others_are_shown_as_ever() -> None:
    assert stderr_of(SHOW + "1 / 0\n", "-") == stderr_of("\n\n1 / 0\n", "-")


def test_a_shell_shows_the_line_and_where_the_rest_is() -> None:
    seen = "\n".join(stderr_of(SHOW + FAIL + "import traceback\ntraceback.print_last()\n", "-i")).replace(">>> ", "")
    line, told, whole = seen.strip().split("\n", 2)
    assert (line, told) == (REFUSED, "(the whole: import traceback; traceback.print_last())")
    assert whole.startswith("Traceback") and "headwater.errors.ConnectionLost: 127.0.0.1:1" in whole


@pytest.fixture
def shell() -> Iterator[Any]:
    made: Any = InteractiveShell()
    made.run_line_magic("colors", "nocolor")
    yield made
    made.history_manager.end_session()
    made.restore_sys_module_state()


def typed(shell: Any, capsys: pytest.CaptureFixture[str], cell: str) -> list[str]:
    assert shell.run_cell(cell).error_in_exec is not None or cell == "%tb"
    return capsys.readouterr().out.strip().splitlines()


def test_ipython_shows_the_line_and_has_the_rest(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    load_ipython_extension(shell)
    assert typed(shell, capsys, FAIL) == [REFUSED, "(the whole: %tb)"]
    whole = typed(shell, capsys, "%tb")
    assert "Traceback (most recent call last)" in whole[1] and whole[-1].startswith("ConnectionLost: 127.0.0.1:1")
    assert typed(shell, capsys, "1 / 0")[-1] == "ZeroDivisionError: division by zero"


def test_errors_of_spark_that_are_not_ours_are_shown_as_ever(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspark.errors")
    load_ipython_extension(shell)
    seen = typed(shell, capsys, "from pyspark.errors import PySparkException; raise PySparkException('no table')")
    assert "Traceback (most recent call last)" in seen[1] and seen[-1] == "PySparkException: no table"


def test_a_client_of_spark_connect_alone_is_enough(
    shell: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark.errors")
    monkeypatch.setitem(sys.modules, "py4j.protocol", None)
    load_ipython_extension(shell)
    assert typed(shell, capsys, FAIL) == [REFUSED, "(the whole: %tb)"]


def test_what_somebody_else_shows_in_ipython_stays_theirs(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.set_custom_exc((HeadwaterError,), lambda shell, kind, error, calls, tb_offset=None: print("theirs"))
    load_ipython_extension(shell)
    assert typed(shell, capsys, FAIL) == ["theirs"]
