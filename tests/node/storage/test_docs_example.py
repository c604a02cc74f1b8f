"""docs/storage.md shows the bytes that the code writes."""

from __future__ import annotations

import re
from pathlib import Path

from tests.node.storage import test_batch, test_manifest, test_segment

PAGE = (Path(__file__).parents[3] / "docs" / "storage.md").read_text("utf-8")


def test_the_hex_dump_of_the_page_is_a_segment_with_a_batch() -> None:
    rows = re.findall(r"^([0-9a-f]{3})  ((?:[0-9a-f]{2} +){1,16})", PAGE, re.MULTILINE)
    shown = b"".join(bytes.fromhex(row) for _, row in rows)
    assert [int(at, 16) for at, _ in rows] == list(range(0, len(shown), 16))
    assert shown == test_segment.EXAMPLE + test_batch.EXAMPLE


def test_the_manifest_of_the_page_is_one() -> None:
    shown = re.search(r"^headwater-store.*?\}$", PAGE, re.MULTILINE | re.DOTALL)
    assert shown is not None
    title, *rest = shown.group().split("\n")
    assert f"{title}\n{''.join(rest)}\n".encode() == test_manifest.EXAMPLE
