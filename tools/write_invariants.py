"""Write the promises of docs/reliability.md from the list of harness/world/invariants.py. `make docs` runs this."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- invariants -->\n", "<!-- /invariants -->\n"


def page() -> str:
    """Return the whole page."""
    sys.path.insert(0, str(ROOT))
    from harness.world.invariants import table  # noqa: PLC0415 - found by the path above

    head, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    return f"{head}{BEGIN}\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
