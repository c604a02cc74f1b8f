"""docs/spec/held is kept: each statement of docs/spec has a line, and each line a test that exists or a reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pytest

from tests.conformance.spec import PAGES, ROOT, Statement, cells, statements

HELD = PAGES / "held"
OF = {each: each for each in ("wire", "dcp", "failover", "tap", "kv", "interop")} | {"errata": "README"}
"""The page of statements that each page of lines is about."""
REMARKS = ("not served: ", "otherwise: ", "not visible from outside: ", "explains: ")
WITHOUT_TEST = REMARKS[2:]
_TEST = re.compile(r"`(tests/[\w/]+\.py(?:::\w+)+)`")
_ERRATUM = re.compile(r"\b(?:erratum|errata) ([A-Z]\d+(?:, [A-Z]\d+)*)")


@dataclass(frozen=True)
class Line:
    """One row of a page of lines."""

    page: str
    section: str
    name: str
    words: str
    remark: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page} {self.name}"


@cache
def lines(page: str) -> tuple[Line, ...]:
    found, section, in_table = [], "", False
    for row in (HELD / f"{page}.md").read_text("utf-8").splitlines():
        if row.startswith("## "):
            section, in_table = row[3:], False
        elif row.startswith("|---"):
            in_table = True
        elif in_table and row.startswith("|"):
            name, words, held, *_ = (*cells(row), "")
            tests = tuple(_TEST.findall(held))
            remark = _TEST.sub("", held).rstrip(";, ")
            found.append(Line(page, section, name, words, remark, tests))
    return tuple(found)


EVERY_LINE = [line for page in (*OF, "seeds") for line in lines(page)]


@cache
def names_in(file: str) -> frozenset[str]:
    """Return the names of a file's tests; those of a class as Class::name, a state machine's by its class."""
    path = ROOT / file
    return frozenset(_named(ast.parse(path.read_text("utf-8")).body)) if path.exists() else frozenset()


def _named(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield from (f"{node.name}::{name}" for name in _named(node.body))
        elif isinstance(node, ast.If):  # a test that is there where its tools are
            yield from _named(node.body)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id


@pytest.mark.parametrize("page", [*OF, "seeds"])
def test_every_test_that_a_line_names_exists(page: str) -> None:
    lost = [
        f"{line}: {test}"
        for line in lines(page)
        for test in line.tests
        if test.partition("::")[2] not in names_in(test.partition("::")[0])
    ]
    assert lost == []


@pytest.mark.parametrize("page", [*OF, "seeds"])
def test_every_line_has_a_test_or_says_why_not(page: str) -> None:
    bare = [str(line) for line in lines(page) if not line.tests and not line.remark.startswith(WITHOUT_TEST)]
    assert bare == []
    unclear = [f"{line}: {line.remark}" for line in lines(page) if line.remark and not line.remark.startswith(REMARKS)]
    assert unclear == []


@pytest.mark.parametrize("page", [*OF, "seeds"])
def test_no_cell_of_a_line_is_cut_by_a_bar(page: str) -> None:
    rows = [row for row in (HELD / f"{page}.md").read_text("utf-8").splitlines() if row.startswith("|")]
    assert [row for row in rows if row.count("|") != 4] == []


def is_covered(statement: Statement, said: list[str], table_is_covered: bool) -> bool:
    """Whether a line quotes the statement. What ends in a colon is said by the items, rows or lines that follow it."""
    if statement.is_row and table_is_covered:
        return True
    return statement.heads or statement.text.endswith(":") or any(words in statement.text for words in said)


@pytest.mark.parametrize("page", OF)
def test_every_statement_has_its_line(page: str) -> None:
    said: dict[str, list[str]] = {}
    for line in lines(page):
        said.setdefault(line.section, []).append(line.words)
    left, table_is_covered = [], False
    for statement in statements(OF[page]):
        words = said.get(statement.section, [])
        if statement.heads:
            table_is_covered = any(word in statement.text for word in words)
        if not is_covered(statement, words, table_is_covered):
            left.append(f"{OF[page]}.md {statement.section}: {statement.text}")
    assert left == []


@pytest.mark.parametrize("page", OF)
def test_every_section_has_a_line(page: str) -> None:
    assert {statement.section for statement in statements(OF[page])} == {line.section for line in lines(page)}


@pytest.mark.parametrize("page", OF)
def test_every_line_quotes_its_section(page: str) -> None:
    told: dict[str, list[str]] = {}
    for statement in statements(OF[page]):
        told.setdefault(statement.section, []).append(statement.text)
    lost = [
        f"{line}: {line.words}" for line in lines(page) if not any(line.words in each for each in told[line.section])
    ]
    assert lost == []


def test_every_name_is_given_once_and_tells_its_section() -> None:
    for page in (*OF, "seeds"):
        names = [line.name for line in lines(page)]
        assert len(names) == len(set(names)), page
    for line in EVERY_LINE:
        prefix = line.name.partition("/")[0]
        is_erratum = line.page == "errata" and re.fullmatch(r"[A-Z]\d+", line.name)
        assert is_erratum or line.page == "seeds" or prefix == line.section, str(line)


def test_an_erratum_that_a_line_names_stands_in_the_list() -> None:
    listed = {statement.text.split(" / ")[0] for statement in statements("README") if statement.is_row}
    named = {name for line in EVERY_LINE for found in _ERRATUM.findall(line.remark) for name in found.split(", ")}
    assert named and named <= listed


@pytest.mark.parametrize(("seed", "count"), [("add", 31), ("req", 46), ("upr", 73), ("tap", 45), ("log", 13)])
def test_every_statement_of_the_seeds_has_its_line(seed: str, count: int) -> None:
    numbers = [line.name.partition("/")[2].rstrip("abc") for line in lines("seeds") if line.name.startswith(f"{seed}/")]
    assert list(dict.fromkeys(numbers)) == [str(number + 1) for number in range(count)]
