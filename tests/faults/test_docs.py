"""docs/reliability.md names every place where a fault can be put, in the words of the code."""

from pathlib import Path

from headwater.failpoints import FAILPOINTS

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


def test_every_failpoint_has_its_line_in_the_page() -> None:
    text = PAGE.read_text("utf-8")
    assert [name for name, what in FAILPOINTS.items() if f"| `{name}` | {what} |" not in text] == []
