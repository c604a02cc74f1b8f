"""Write docs/reference/metrics.md from the table of the node's metrics.

`make docs` runs this; tests/test_docs.py fails when the page is stale.
"""

from pathlib import Path

from headwater.node.metrics import COMMIT_ABOUT, COMMIT_SECONDS, METRICS

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "metrics.md"
HEAD = """# Metrics

Written by `make docs` from `src/headwater/node/metrics.py`; edit there.

A node tells these on its own port, to users with the role `monitor`, in Prometheus' text format:

```
curl -u ann:... http://127.0.0.1:11210/metrics
```

Beside them are the process's own: `process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_open_fds`.

`/healthz` (200 while the node answers at all) and `/readyz` (503 while it waits to learn which vbuckets are its own, or
traffic is disabled) are for everybody and tell nothing of the data.

| metric | kind | labels | is |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = [(each.full_name, each.kind, ", ".join(each.labels), each.about) for each in METRICS]
    rows.append((COMMIT_SECONDS, "histogram", "", COMMIT_ABOUT))
    return HEAD + "".join(f"| `{name}` | {kind} | {labels} | {about} |\n" for name, kind, labels, about in rows)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
