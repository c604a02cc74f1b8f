"""The page that compares has no figure that was not measured: each stands in docs/performance.md as well."""

import re
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_the_figures_of_the_comparison_are_those_that_were_measured() -> None:
    page = (DOCS / "comparison.md").read_text("utf-8")
    table = page.partition("## Figures")[2].partition("There is no figure")[0]
    rows = [row for row in table.splitlines() if row.startswith("| ") and "yardstick" not in row]
    measured = (DOCS / "performance.md").read_text("utf-8")
    told = [number for row in rows for cell in row.split("|")[2:] for number in re.findall(r"\d+(?:\.\d+)?", cell)]
    assert len(rows) == 8 and len(told) > 15
    assert [number for number in told if not re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.]*\d)", measured)] == []
