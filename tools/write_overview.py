"""Draw docs/assets/overview.svg, the picture of the first page, from the boxes and arrows below.

`make docs` runs this; tests/test_docs.py fails when the picture is stale. Colours follow the page: light or dark.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parent.parent / "docs" / "assets" / "overview.svg"
WIDTH, HEIGHT = 860, 330
TITLE = (
    "Applications write to a cluster of nodes; what changes flows to the client, to Spark, and into tables and backups"
)
STYLE = """
.box { fill: #e0f2f1; stroke: #00796b; } .ours { fill: #b2dfdb; } text { fill: #10312d; font: 14px sans-serif; }
.small { font-size: 12px; } .arrow { stroke: #00796b; fill: none; stroke-width: 2; } .head { fill: #00796b; }
@media (prefers-color-scheme: dark) {
 .box { fill: #12312e; stroke: #4db6ac; } .ours { fill: #1d4a45; } text { fill: #e0f2f1; }
 .arrow { stroke: #4db6ac; } .head { fill: #4db6ac; } }
"""


class Box(NamedTuple):
    """A box of the picture: its corner and size in pixels, its texts, and `ours`: True for a part of headwater."""

    left: int
    top: int
    width: int
    height: int
    title: str
    more: tuple[str, ...]
    ours: bool = True


BOXES = (
    Box(
        10,
        110,
        170,
        110,
        "Applications",
        ("SDKs of Couchbase,", "clients of memcached,", "headwater.client"),
        ours=False,
    ),
    Box(
        270,
        60,
        220,
        210,
        "Nodes",
        (
            "headwater serve, or a",
            "Couchbase server",
            "",
            "vbuckets: a history each",
            "log on disk, replicas,",
            "failover, takeover",
        ),
    ),
    Box(590, 10, 260, 62, "Readers", ("events and Arrow batches in Python",)),
    Box(590, 92, 260, 62, "Spark", ("batch and streaming source dcp",)),
    Box(590, 174, 260, 62, "Mirror", ("a Delta table equal to the bucket",)),
    Box(590, 256, 260, 62, "Copies", ("backup, copy, index, caches",)),
)
ARROWS = (
    ((180, 165), (270, 165), "write"),
    ((490, 110), (590, 41), ""),
    ((490, 145), (590, 123), "changes"),
    ((490, 185), (590, 205), ""),
    ((490, 220), (590, 287), ""),
)


def drawn(box: Box) -> str:
    """Return a box with its texts, as SVG."""
    words = [f'<text x="{box.left + 14}" y="{box.top + 26}" font-weight="bold">{escape(box.title)}</text>']
    for number, line in enumerate(box.more):
        words.append(f'<text class="small" x="{box.left + 14}" y="{box.top + 48 + 19 * number}">{escape(line)}</text>')
    kind = "box ours" if box.ours else "box"
    place = f'x="{box.left}" y="{box.top}" width="{box.width}" height="{box.height}" rx="8"'
    return f'<rect class="{kind}" {place}/>\n' + "\n".join(words)


def page() -> str:
    """Return the whole picture, as SVG."""
    lines = [
        f'<path class="arrow" marker-end="url(#head)" d="M{x} {y} L{to_x - 8} {to_y}"/>'
        + (f'\n<text class="small" x="{(x + to_x) // 2 - 22}" y="{(y + to_y) // 2 - 14}">{word}</text>' if word else "")
        for (x, y), (to_x, to_y), word in ARROWS
    ]
    head = '<path class="head" d="M0 0 L9 4.5 L0 9 z"/>'
    size = 'markerWidth="9" markerHeight="9" refX="5" refY="4.5" orient="auto" markerUnits="userSpaceOnUse"'
    marker = f'<marker id="head" {size}>{head}</marker>'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            f"<title>{escape(TITLE)}</title><style>{STYLE}</style><defs>{marker}</defs>",
            *map(drawn, BOXES),
            *lines,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
