"""The pages of docs/spec, cut into sections and statements, and the numbers that stand in their tables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "spec"
_HEADING = re.compile(r"#{2,4} (?:(\d+(?:\.\d+)*)\.? )?(.*)")
_ITEM = re.compile(r"\s*(?:[*-]|\d+\.) ")
_NUMBER = re.compile(r"[0-9a-f]{1,2}(?:-[0-9a-f]{2}|(?:, ?[0-9a-f]{2})+)?")


@dataclass(frozen=True)
class Statement:
    """One row of a table, one item of a list, one paragraph or one block of code; `heads` a table: its first row.

    `text` has one blank between words, and `/` between the cells of a row.
    """

    section: str
    text: str
    heads: bool = False
    is_row: bool = False


def cells(line: str) -> list[str]:
    """Return the cells of a row that are not empty."""
    return [cell.strip() for cell in line.strip().strip("|").split("|") if cell.strip()]


@cache
def statements(page: str) -> tuple[Statement, ...]:
    """Return what a page (its name without `.md`) says. What stands before the first heading is section `0`."""
    found: list[Statement] = []
    section, words, is_code, in_table = "0", list[str](), False, False

    def end() -> None:
        if text := " ".join(" ".join(words).split()):
            found.append(Statement(section, text))
        words.clear()

    for line in (PAGES / f"{page}.md").read_text("utf-8").splitlines():
        heading = _HEADING.match(line)
        if line.startswith("```"):
            if not is_code:
                end()
            words.append(line)
            is_code = not is_code
            if not is_code:
                end()
        elif is_code:
            words.append(line)
        elif heading:
            end()
            section = heading[1] or heading[2]
        elif line.startswith("|"):
            end()
            if not set(line) <= set("|- "):
                found.append(Statement(section, " / ".join(cells(line)), not in_table, in_table))
        elif not line.startswith("# "):
            if not line.strip() or _ITEM.match(line):
                end()
            words.append(line.strip())
        in_table = line.startswith("|")
    end()
    return tuple(found)


def numbers(page: str, section: str) -> dict[int, str]:
    """Return the names that a section's tables give to numbers (a column of hex digits, a name beside it)."""
    found: dict[int, str] = {}
    for statement in statements(page):
        parts = statement.text.split(" / ")
        if statement.section == section and statement.is_row:
            for number, name in pairwise(parts):
                if _NUMBER.fullmatch(number) and not _NUMBER.fullmatch(name):
                    found |= dict.fromkeys(_each(number), name)
    return found


def _each(number: str) -> list[int]:
    """Return the numbers of `2c`, `30-3c` or `c1,c2`."""
    first, _, last = number.partition("-")
    if last:
        return list(range(int(first, 16), int(last, 16) + 1))
    return [int(each, 16) for each in number.split(",")]


def quiet_forms() -> dict[int, int]:
    """Return each quiet opcode of wire 2.1 with its loud one, whose name it has with a Q behind it or inside."""
    names = {name.partition(" (")[0]: number for number, name in numbers("wire", "2.1").items()}
    return {
        number: names[loud]
        for name, number in names.items()
        if (loud := re.sub(r"Q(?=_|$)", "", name)) != name and loud in names
    }
