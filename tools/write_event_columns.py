"""Write the table of columns in docs/howto/spark.md from the columns of changes.

`make docs` runs this; tests/test_docs.py fails when the table is stale.
"""

import re
from pathlib import Path

from headwater.spark.schema import COLUMNS

PAGE = Path(__file__).parent.parent / "docs" / "howto" / "spark.md"
HEAD = "## The columns\n\n| column | type | meaning |\n|---|---|---|\n"


def page() -> str:
    """Return the page with the present table."""
    rows = "".join(f"| `{name}` | {kind} | {meaning} |\n" for name, (kind, meaning) in COLUMNS.items())
    return re.sub(re.escape(HEAD) + r"(\|.*\n)*", lambda _: HEAD + rows, PAGE.read_text("utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
