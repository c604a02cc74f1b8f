"""No block of a page is without a test or a reason; and the commands in it are such as the command line takes."""

from __future__ import annotations

import ast
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from headwater.cli.app import app
from tests.guides.blocks import ROOT, Block, Elsewhere, Ran, Shown, Typed, blocks, pages
from tests.guides.declared import DECLARED, way

ALL = [block for page in pages() for block in blocks(page)]
OURS = [
    (block, command)
    for block in ALL
    for line in block.commands()
    if block.language in {"", "console", "bash", "sh"}
    for command in re.findall(r"(?:^|&& |[*0-9] {2})(headwater .*?)(?= && | \| | > |$)", line)
]


@pytest.mark.parametrize("block", ALL, ids=str)
def test_a_block_is_run_or_says_why_not(block: Block) -> None:
    assert way(block) is not None, f"declare it in tests/guides/declared.py: {block.text[:60]!r}"


def test_no_declaration_is_left_over_from_a_block_that_is_gone() -> None:
    used = {
        (block.page, max((each for each in DECLARED.get(block.page, {}) if block.text.startswith(each)), key=len))
        for block in ALL
        if way(block) is not None
    }
    assert [(page, begins) for page, told in DECLARED.items() for begins in told if (page, begins) not in used] == []


def test_the_tests_that_are_named_are_there() -> None:
    named = {each.test for told in DECLARED.values() for each in told.values() if isinstance(each, Elsewhere)}
    for test in sorted(named):
        path, _, name = test.partition("::")
        assert (ROOT / path).exists(), test
        assert not name or f"def {name}(" in (ROOT / path).read_text("utf-8"), test


def test_the_tests_know_how_many_blocks_a_page_has() -> None:
    """Those that take minutes are not run with the others: a block more would be found late, and be run by none."""
    ways = {"typed": Typed, "ran": Ran}
    for file in ("test_typed.py", "test_python.py"):
        for node in ast.walk(ast.parse((Path(__file__).parent / file).read_text("utf-8"))):
            match node:
                case ast.Assign(
                    [ast.Tuple(names)], ast.Call(ast.Name("typed" | "ran" as of), [ast.Constant(str(page))])
                ) if not any(isinstance(name, ast.Starred) for name in names):
                    found = [block for block in blocks(page) if isinstance(way(block), ways[of])]
                    assert len(found) == len(names), f"{file}:{node.lineno}: {page} has {len(found)}"


def test_most_blocks_are_run() -> None:
    """A reason is easily written: it is for what nothing here can run."""
    shown = [block for block in ALL if isinstance(way(block), Shown)]
    assert len(shown) * 3 < len(ALL), [str(each) for each in shown]


@pytest.mark.parametrize("block", [each for each in ALL if each.language in {"python", "json", "toml"}], ids=str)
def test_what_a_block_is_called_it_is(block: Block) -> None:
    if block.language == "python":
        compile(block.text, str(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    else:
        (json.loads if block.language == "json" else tomllib.loads)(block.text)


@pytest.mark.parametrize(("block", "command"), OURS, ids=lambda each: each if isinstance(each, str) else str(each))
def test_a_command_of_a_page_is_one_that_the_command_line_takes(block: Block, command: str) -> None:
    words = shlex.split(command, comments=True)[1:]
    group: Any = typer.main.get_command(app)
    from_file = words[0] == "--config"  # which may say whatever the line does not
    words = words[2:] if from_file else words
    if words[0].startswith("--"):
        assert words[0] in {option for param in group.params for option in param.opts}, f"{block}: {command}"
        return
    if words[0] == "gone":
        return  # of the package that this page makes: tests/cli/test_guests.py installs it and types these lines
    context = group.make_context("headwater", [words[0]])
    while hasattr(group, "commands"):
        name, words = words[0], words[1:]
        assert name in group.commands, f"{block}: {command}"
        group = group.commands[name]
    if from_file or group.name == "serve":  # which has a parser of its own, that is faster
        known = {option for param in group.params for option in param.opts}
        assert {word for word in words if word.startswith("--")} <= known, f"{block}: {command}"
        return
    group.make_context(group.name, words, parent=context)
