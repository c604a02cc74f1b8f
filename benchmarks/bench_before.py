"""The cost of a drain of every version in which each comes with the one that it replaced.

A node in a process of its own, 64 vbuckets, 16-byte keys, 256-byte values, every key written three times and nothing
compacted. The reference is the same drain with history alone; both take turns. Two changes of three replace a version,
so with it the drain moves 1.6 times the bytes.
"""

from __future__ import annotations

from benchmarks.bench_streams import VBUCKETS, draining, load
from benchmarks.harness import measure
from headwater import testing

KEYS = 150_000
VERSIONS = 3


def main() -> None:
    """Measure the drain with what was replaced beside the drain without."""
    items = KEYS * VERSIONS
    with testing.node(vbuckets=VBUCKETS, compact_dead_percent=100) as node, node.client() as bucket:
        for version in range(VERSIONS):
            load(node, KEYS, value_byte=0x61 + version)
        measure(
            "drain with what each change replaced, 256 B values",
            unit="M changes/s",
            amount=items / 1e6,
            ours=draining(bucket, items, before=True),
            reference=("with history alone", draining(bucket, items, history=True)),
        )
