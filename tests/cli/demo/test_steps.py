"""Steps on the screen."""

import re

import pytest

from headwater.cli.demo.steps import step


def test_a_step_is_a_line_with_its_result_and_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    with step("write") as told:
        told("3 documents")
    assert re.fullmatch(r"write {32}3 documents  0\.\d s\n", capsys.readouterr().out)


def test_a_step_that_fails_is_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError), step("write"):
        _ = 1 / 0
    assert capsys.readouterr().out == ""
