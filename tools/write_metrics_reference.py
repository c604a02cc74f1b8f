"""Write docs/reference/metrics.md from the table of the node's metrics.

`make docs` runs this; tests/test_docs.py fails when the page is stale.
"""

from pathlib import Path

from headwater.node.rest.metrics import METRICS

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "metrics.md"
HEAD = """# Metrics

Written by `make docs` from `src/headwater/node/rest/metrics.py`; edit there.

A node tells these on its own ports, and on `--http-port`, which has the pages alone, to users with the role `monitor`,
in Prometheus' text format:

```
curl -u ann:... http://127.0.0.1:11210/metrics
```

A counter begins at 0 with each start of the node. A request that belongs to an open DCP or TAP stream is told by the
stream's own figures, not by `headwater_requests_total`. All requests that came in one piece begin at the same moment,
and all changes of one batch end at the same: a pipeline's last request is told to have taken as long as its batch.

Beside them are the process's own: `process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_open_fds`.

`/healthz` (200 while the node answers at all) and `/readyz` (503 while it waits to learn which vbuckets are its own,
has none and is no member of a cluster, or traffic is disabled) are for everybody and tell nothing of the data.

| metric | kind | labels | is |
|---|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
    rows = [(metric.full_name, metric.kind, ", ".join(metric.all_labels), metric.about) for metric in METRICS]
    return HEAD + "".join(f"| `{name}` | {kind} | {labels} | {about} |\n" for name, kind, labels, about in rows)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
