"""Write docs/reference/readers.md from harness/readers/results.json, which `make readers` keeps.

`make docs` runs this; tests/test_docs.py fails when the page is stale.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "readers.md"
RESULTS = ROOT / "harness" / "readers" / "results.json"
HEAD = """# Which reader reads which table

Written by `make docs` from what `make readers` saw. That lets a mirror write a table of every kind and format, in
batches that overwrite and delete, and every reader read it. *Yes*: all rows, in all columns that are compared, are what
the bucket has, by the bucket's own history. *No*: they are not. *Refuses*: the reader ends with an error, and shows no
row. The numbers lead to its words.

Formats are those of `--format`: `delta`, `iceberg`, and *both* for `delta,iceberg`. A cell without a format holds for
all of them that the reader can be given. A table of Iceberg alone can be opened as one of Delta, too. Texts and bytes
are compared as bytes, times as microseconds.

"""
OUTCOMES = {
    "right": "yes",
    "wrong": "**no**",
    "refuses": "refuses",
    "crashes": "**crashes**",
    "not installed": "not tried",
}
TITLES = {"delta": "Read as Delta", "iceberg": "Read as Iceberg"}
FORMS = {"delta": "delta", "iceberg": "iceberg", "delta,iceberg": "both"}


def page() -> str:
    """Return the whole page."""
    results = json.loads(RESULTS.read_text("utf-8"))
    notes: list[str] = []
    parts = [part for reads in TITLES for part in _section(reads, results, notes)]
    said = [f"{number}. {note}" for number, note in enumerate(notes, 1)]
    refused = [f"* {each['kind']}, `--format {each['form']}`: {each['words']}" for each in _ours(results)]
    ours = ["## Tables that a mirror does not write", "", *refused, ""] if refused else []
    return HEAD + "\n".join([*_versions(results), *parts, *ours, "## In their words", "", *said, ""])


def _versions(results: Any) -> list[str]:
    rows = [f"| {each['reader']} | {each['reads']} | {each['versions']} |" for each in results["versions"]]
    return ["| reader | reads | versions |", "|---|---|---|", *rows, ""]


def _ours(results: Any) -> Iterator[Any]:
    return (cell for cell in results["cells"] if cell["reader"] == "headwater")


def _section(reads: str, results: Any, notes: list[str]) -> list[str]:
    cells = [cell for cell in results["cells"] if cell["reads"] == reads and cell["reader"] != "headwater"]
    readers, kinds = _names(cells, "reader"), _names(cells, "kind")
    met: dict[tuple[str, str], list[Any]] = {}
    for cell in cells:
        met.setdefault((cell["kind"], cell["reader"]), []).append(cell)
    rows = [
        f"| {kind} | {' | '.join(_cell(met.get((kind, reader), []), notes) for reader in readers)} |" for kind in kinds
    ]
    return [f"## {TITLES[reads]}", "", f"| | {' | '.join(readers)} |", f"|---|{'---|' * len(readers)}", *rows, ""]


def _names(cells: Iterable[Any], field: str) -> list[str]:
    return list(dict.fromkeys(cell[field] for cell in cells))


def _cell(cells: list[Any], notes: list[str]) -> str:
    """Return the text of a cell: one outcome for all formats, or those of each."""
    outcomes = {FORMS[cell["form"]]: _outcome(cell, notes) for cell in cells}
    if len(set(outcomes.values())) == 1:
        return next(iter(outcomes.values()))
    return "; ".join(f"{form}: {text}" for form, text in outcomes.items()) or "–"


def _outcome(cell: Any, notes: list[str]) -> str:
    text = OUTCOMES[cell["outcome"]]
    if not cell["words"]:
        return text
    words = cell["words"].replace("|", "\\|").replace("<", "&lt;")
    if words not in notes:
        notes.append(words)
    return f"{text} ({notes.index(words) + 1})"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
