"""The tables of generated pages, read back by the tests that try each line of them on a node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parent.parent.parent / "docs"


def table(page: str, title: str) -> Iterator[dict[str, str]]:
    """The rows of a page's table behind a heading, each by the names of its columns."""
    _, _, rest = (DOCS / page).read_text("utf-8").partition(f"## {title}\n")
    lines = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]
    head, _, *rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines)
    return (dict(zip(head, (cell.replace("\\|", "|") for cell in row), strict=True)) for row in rows)
