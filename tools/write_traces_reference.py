"""Write docs/reference/traces.md from the table of spans.

`make docs` runs this; tests/test_docs.py fails when the page is stale.
"""

from pathlib import Path

from headwater.tracing import SPANS

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "traces.md"
HEAD = """# Spans

Written by `make docs` from `src/headwater/tracing.py`; edit there.

The spans of a batch and of a rebalance, for OpenTelemetry ([how to have them sent](../howto/traces.md)). Attributes
are named `headwater.` and what the table says; an error that ends a span is noted on it. Names stay from release to
release.

| span | covers | attributes |
|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
    lines = (
        f"| `{name}` | {about} | {', '.join(f'`{attribute}`' for attribute in attributes) or '-'} |\n"
        for name, (about, attributes) in SPANS.items()
    )
    return HEAD + "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
