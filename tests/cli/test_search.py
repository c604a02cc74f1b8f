"""Searching by hand in an index that is there; what is found is tested in tests/pipelines/test_fulltext.py."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from headwater.cli.app import app
from headwater.pipelines.fulltext import FullText
from headwater.pipelines.table import BEGINNING
from tests.pipelines.test_fulltext import put, row


def ask(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["search", *words])
    return done.exit_code, done.stdout, done.stderr


def test_hits_are_lines_or_json_and_nothing_found_is_status_1(tmp_path: Path) -> None:
    index = FullText(tmp_path, "b", {"tokenizer": "words"}, BEGINNING)
    put(index, row("a", "red\nwine"), row("b", None, aside="not JSON: x"))
    status, out, _ = ask(str(tmp_path), "wine")
    assert (status, out.split()[1:]) == (0, ["a", "red", "[wine]"])
    (found,) = map(json.loads, ask(str(tmp_path), "wine", "--json")[1].splitlines())
    assert (found["key"], found["snippet"]) == ("a", "red\n[wine]")
    assert ask(str(tmp_path), "--aside")[1] == "b  not JSON: x\n"
    assert ask(str(tmp_path), "beer") == (1, "", "headwater: nothing was found\n")


def test_a_folder_without_an_index_and_missing_words_are_told(tmp_path: Path) -> None:
    status, _, problem = ask(str(tmp_path), "wine")
    assert status == 1 and "there is no such file" in problem
    FullText(tmp_path, "b", {"tokenizer": "words"}, BEGINNING).close()
    assert ask(str(tmp_path))[0] == 2
    assert ask(str(tmp_path), "...")[0] == 2
