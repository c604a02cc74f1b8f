"""How a command fails: one line and a status, whatever happened; and a bug keeps its traceback."""

from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headwater.cli import stopping
from headwater.cli.app import app
from headwater.cli.failures import CommandError, Commands, InputError
from headwater.cli.stopping import Stopped
from headwater.errors import ConnectionLost, OptionError
from tests.cli.support import Run


def ending(work: Callable[[], object]) -> tuple[int, str]:
    """Status and stderr of a command that does this."""
    app = typer.Typer(cls=Commands)

    @app.callback()
    def main() -> None:
        """Without it, typer takes the only command for the application."""

    @app.command()
    def command() -> None:
        work()

    result = CliRunner().invoke(app, ["command"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stderr


def raising(error: BaseException) -> Callable[[], object]:
    def work() -> None:
        raise error

    return work


def test_what_went_well_says_nothing() -> None:
    assert ending(lambda: None) == (0, "")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (ConnectionLost("a:1", "gone"), 1, "headwater: a:1: gone\n"),
        (CommandError("3 rows expected,\n  2 found"), 1, "headwater: 3 rows expected, 2 found\n"),
        (InputError(Path("x.csv"), "line 3", "no key"), 1, "headwater: x.csv, line 3: no key\n"),
        (FileNotFoundError(2, "No such file or directory", "x"), 1, "headwater: x: No such file or directory\n"),
        (OSError("odd"), 1, "headwater: odd\n"),
        (typer.Abort(), 130, "headwater: stopped\n"),
        (
            UnicodeEncodeError("utf-8", "\udcff name", 0, 1, "surrogates not allowed"),
            2,
            "headwater: '\\udcff name' is no text in UTF-8\n",
        ),
        (Stopped(2), 130, "headwater: stopped by SIGINT\n"),
        (Stopped(15), 143, "headwater: stopped by SIGTERM\n"),
    ],
)
def test_each_kind_of_failure_is_one_line_and_its_status(error: BaseException, status: int, line: str) -> None:
    assert ending(raising(error)) == (status, line)


def test_a_wrong_option_that_is_noticed_late_is_still_a_wrong_option() -> None:
    status, line = ending(raising(OptionError("vbuckets", 0, "1 to 65536")))
    assert status == 2 and line.startswith("headwater: ") and "1 to 65536" in line and line.count("\n") == 1


@pytest.mark.parametrize(
    ("reason", "next_step"),
    [
        ("connection refused", "; no node listens there: start one (headwater serve), or name another address"),
        ("Name or service not known", "; is the name right?"),
        ("Temporary failure in name resolution", "; is the name right?"),
        ("the peer closed the connection", ""),
    ],
)
def test_a_connection_that_can_not_be_made_is_told_with_what_to_look_at(reason: str, next_step: str) -> None:
    assert ending(raising(ConnectionLost("a:1", reason))) == (1, f"headwater: a:1: {reason}{next_step}\n")


def test_a_library_that_an_extra_brings_is_told_with_what_to_install() -> None:
    status, line = ending(raising(ModuleNotFoundError("No module named 'pyroaring'", name="pyroaring")))
    assert (status, line) == (
        1,
        "headwater: pyroaring is missing: pip install 'pyroaring>=1.0', or headwater with the extra `lake`\n",
    )


def test_a_module_that_no_extra_brings_is_a_bug() -> None:
    with pytest.raises(ModuleNotFoundError):
        ending(raising(ModuleNotFoundError("No module named 'headwater.nothing'", name="headwater.nothing")))


def test_what_a_signal_became_on_its_way_is_still_that_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """pandas, in the middle of its import, made an AttributeError of it, with a traceback and another status."""
    monkeypatch.setattr(stopping, "_raised", [])

    def importing() -> None:
        try:
            stopping._raise(15, None)
        except Stopped:
            raise AttributeError("partially initialized module") from None

    assert ending(importing) == (143, "headwater: stopped by SIGTERM\n")


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        (["load", "x", "--format", "xml"], "'--format': 'xml' is not one of jsonl, csv, tsv, parquet, changes. See: "),
        (["load", "x", "--skip", "a"], "'--skip': 'a' is not a whole number. See: "),
        (["load", "x", "--skip", "-1"], "'--skip': '-1' is not 0 or more. See: "),
        (["cluster", "init", "a", "--replicas", "9"], "'--replicas': '9' is not 3 or less. See: "),
        (
            ["mirror", "a", "--to", "b", "--retry", "soon"],
            "'--retry': 'soon' is not a number of seconds, 0 or more; or such as 30s, 5m or 2h. See: ",
        ),
    ],
)
def test_a_value_that_can_not_be_is_told_in_words_of_its_option(typed: list[str], line: str) -> None:
    result = CliRunner().invoke(app, typed)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(f"headwater: Invalid value for {line}")


def test_a_bug_of_ours_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        ending(lambda: 1 // 0)


@pytest.mark.parametrize("line", [("set", "temperature", "-40"), ("search", "./found", "-wine"), ("get", "-1")])
def test_what_begins_with_a_dash_and_is_no_option_is_told_its_place(run: Run, line: tuple[str, ...]) -> None:
    status, shown, problems = run(*line)
    assert (status, shown) == (2, "")
    assert f"goes behind --: headwater {line[0]} ... -- -..." in problems and problems.count("\n") == 1


def test_behind_two_dashes_a_value_may_begin_with_one(run: Run) -> None:
    assert run("set", "temperature", "--", "-40")[0] == 0
    assert run("get", "temperature") == (0, "-40", "")


def test_an_option_that_is_mistyped_is_not_taken_for_a_value(run: Run) -> None:
    assert "behind" not in run("load", "rows.jsonl", "--kye", "id")[2]
