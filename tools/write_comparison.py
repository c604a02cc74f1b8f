"""Write the figures of docs/comparison.md: rows of docs/performance.md, copied unchanged. `make docs` runs this."""

from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "comparison.md"
MEASURED = DOCS / "performance.md"
BEGIN, END = "<!-- figures -->\n", "<!-- /figures -->\n"
# Each table: how a row begins on the page of measurements, and how many rows are taken from there on.
TABLES = (
    (
        ("drain: store, socket, columns", 1),
        ("quiet sets, durable, 256-byte values", 1),
        ("50 connections, a set at a time", 1),
        ("50 connections: until the change", 1),
        ("Spark source to noop", 1),
    ),
    (("upsert beside a plain Delta MERGE", 2), ("upsert beside Spark's Kafka source and MERGE", 2)),
)


def rows(lines: list[str], start: str, count: int) -> list[str]:
    """Return `count` rows of a table, from the one that begins with `start`."""
    (first,) = (number for number, line in enumerate(lines) if line.startswith(f"| {start}"))
    return lines[first : first + count]


def header(lines: list[str], row: str) -> list[str]:
    """Return the two header lines of the table that a row is in."""
    top = max(number for number in range(lines.index(row)) if not lines[number].startswith("|")) + 1
    return lines[top : top + 2]


def page() -> str:
    """Return the whole page."""
    lines = MEASURED.read_text("utf-8").splitlines()
    tables = [[row for start, count in table for row in rows(lines, start, count)] for table in TABLES]
    figures = "\n\n".join("\n".join([*header(lines, table[0]), *table]) for table in tables)
    head, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    return f"{head}{BEGIN}\n{figures}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
