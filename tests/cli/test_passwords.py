"""Passwords from files and standard input."""

import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater.cli.app import app
from headwater.cli.passwords import new_password, password_of
from headwater.errors import OptionError


def test_a_password_is_the_first_line_of_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_bytes(b"s3cret \r\nrest")
    file.chmod(0o600)
    assert password_of(str(file)) == "s3cret "
    file.chmod(0o640)
    with pytest.raises(OptionError, match="chmod 600"):
        password_of(str(file))
    with pytest.raises(OptionError, match="No such file"):
        password_of(str(tmp_path / "other"))


def test_a_file_that_is_no_text_is_told_without_its_bytes(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_bytes(b"\xff\xfe")
    file.chmod(0o600)
    with pytest.raises(OptionError, match="no text"):
        password_of(str(file))


@pytest.mark.parametrize("file", ["-", None])
def test_a_dash_or_nothing_is_standard_input(monkeypatch: pytest.MonkeyPatch, file: str | None) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("s3cret\nmore\n"))
    assert new_password(file, "ann") == "s3cret"


@pytest.mark.parametrize(
    ("line", "ways"),
    [
        ("get k --user ann", ("--password-file FILE", "HEADWATER_PASSWORD")),
        ("mirror couchbase://127.0.0.1:1 --to ./t --user ann", ("--password-file FILE", "HEADWATER_PASSWORD")),
        ("cluster status 127.0.0.1:1 --user ann", ("--password-file FILE", "HEADWATER_PASSWORD")),
        ("user list --node 127.0.0.1:1 --by ann", ("--by-password-file FILE", "HEADWATER_PASSWORD")),
        (
            "search http://127.0.0.1:1/i words --opensearch-user ann",
            ("--opensearch-password-file FILE", "HEADWATER_OPENSEARCH_PASSWORD"),
        ),
    ],
)
def test_a_name_without_a_password_and_a_terminal_is_told_how_to_give_one(
    line: str, ways: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADWATER_PASSWORD", raising=False)
    result = CliRunner().invoke(app, line.split())
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    assert "'ann'" in result.stderr or '"ann"' in result.stderr
    assert all(way in result.stderr for way in ways)
