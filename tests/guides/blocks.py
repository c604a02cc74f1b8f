"""Blocks of code as they stand in a page, and what becomes of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Written by tools from declarations that have tests of their own; records of what was decided; the protocol itself.
GENERATED = ("docs/reference/", "docs/protocol/", "docs/decisions/", "docs/spec/")
_BLOCK = re.compile(r"^```([a-z]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """One block: the page by its path in the tree, the language behind the ticks, the text, the number of its line."""

    page: str
    language: str
    text: str
    line: int

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def commands(self) -> list[str]:
        """Return the command lines, each with its continuation: of a console those behind a prompt, else all."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [re.sub(r"\s{2,}#.*$", "", line).strip() for line in lines if line and not line.startswith("#")]

    def answers(self) -> list[tuple[str, str]]:
        """Return each command of a console with what is printed behind it."""
        told: list[tuple[str, str]] = []
        for line in self.text.splitlines(keepends=True):
            if line.startswith("$ "):
                told.append((re.sub(r"\s{2,}#.*$", "", line[2:]).strip(), ""))
            else:
                told[-1] = (told[-1][0], told[-1][1] + line)
        return told


def pages() -> list[str]:
    """Return the pages that are written by hand."""
    found = ["README.md", *(each.relative_to(ROOT).as_posix() for each in sorted((ROOT / "docs").rglob("*.md")))]
    return [page for page in found if not page.startswith(GENERATED)]


def blocks(page: str) -> list[Block]:
    """Return a page's blocks in order."""
    text = (ROOT / page).read_text("utf-8")
    return [Block(page, found[1], found[2], text.count("\n", 0, found.start()) + 1) for found in _BLOCK.finditer(text)]


# --------------------------------------------------------------------------- what becomes of a block


@dataclass(frozen=True, slots=True)
class Typed:
    """Typed by tests/guides/test_typed.py, in an empty folder, as printed; what is printed behind it is compared."""


@dataclass(frozen=True, slots=True)
class Ran:
    """Python that is run by tests/guides/test_python.py against a node."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Python that wants what a test has not (a cluster of Spark, a store of others): run with the calls named checked
    against their signatures and not made."""

    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Run by another test: `tests/path.py::test_name`."""

    test: str


@dataclass(frozen=True, slots=True)
class Shown:
    """Nothing to run; `why` says what it is. Command lines of ours in it are parsed all the same."""

    why: str


Way = Typed | Ran | Bound | Elsewhere | Shown
