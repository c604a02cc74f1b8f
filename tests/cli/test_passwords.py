"""Passwords from files and standard input."""

import io
from pathlib import Path

import pytest

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
