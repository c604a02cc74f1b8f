"""The page of first aid quotes messages that there are: each is looked for in the strings of the source."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
QUOTED = [
    quoted
    for row in re.findall(r"^\| (.+?) \|", PAGE, re.MULTILINE)
    for quoted in re.findall(r"`([^`]+)`", row)
    if "\u2026" in quoted or " " in quoted
]
COMMANDS = ("headwater ",)
OF_THE_SYSTEM = ("Address already in use",)


@pytest.fixture(scope="module")
def strings() -> str:
    """All that the source has between quotation marks, with texts of several lines as one."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(" ".join(node.value.split()))
    return "\n".join(found)


def test_the_page_quotes_messages() -> None:
    assert len(QUOTED) > 15


@pytest.mark.parametrize("quoted", [each for each in QUOTED if not each.startswith(COMMANDS)])
def test_a_message_that_is_quoted_is_one_that_is_printed(quoted: str, strings: str) -> None:
    if quoted not in OF_THE_SYSTEM:
        parts = [part.strip(" .:;").removeprefix("is not ") for part in re.split("\u2026|; ", quoted)]
        assert [part for part in parts if part not in strings] == []
