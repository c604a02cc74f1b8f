"""`headwater serve` that never gets to serve: told in one line, with a status."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.errors import StorageError
from headwater.node.main import failed, serve


def test_a_wrong_option_is_told_in_one_line_and_is_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(["--vbuckets", "1000", "--data", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith('headwater: option "vbuckets": 1000 ') and told.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [], "nothing was begun"


def test_a_data_folder_that_can_not_be_had_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert serve(["--port", "0", "--data", str(tmp_path / "file")]) == 1
    assert capsys.readouterr().err.startswith("headwater: ")


def test_what_is_no_wrong_option_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert failed(StorageError("the disk is gone")) == 1
    assert capsys.readouterr().err == "headwater: the disk is gone\n"
