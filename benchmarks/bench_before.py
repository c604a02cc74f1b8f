"""The cost of a drain of every version in which each change carries the version that it replaced.

A node in a process of its own, 64 vbuckets, 16-byte keys, 256-byte values, every key written three times and nothing
compacted. Two of three changes replace a version, so a drain with the replaced versions moves 1.7 times the bytes. It
takes turns with two references: the same drain with history alone, and a drain of as many documents, from another node,
whose values are so much larger that as many bytes move. The second shows how much of the cost comes from the bytes.
"""

from __future__ import annotations

from benchmarks.bench_streams import VALUE_BYTES, VBUCKETS, draining, load
from benchmarks.harness import measure
from headwater import testing

KEYS = 150_000
VERSIONS = 3
MESSAGE_BYTES = 24 + 33
LARGER_BYTES = VALUE_BYTES + MESSAGE_BYTES + VALUE_BYTES * (VERSIONS - 1) // VERSIONS


def load_versions(node: testing.Node, value_bytes: int) -> None:
    """Set each key VERSIONS times."""
    for version in range(VERSIONS):
        load(node, KEYS, value_byte=0x61 + version, value_bytes=value_bytes)


def main() -> None:
    """Measure the drain with replaced versions beside the drain without them, and beside one of as many bytes."""
    items = KEYS * VERSIONS
    with (
        testing.node(vbuckets=VBUCKETS, compact_dead_percent=100) as node,
        testing.node(vbuckets=VBUCKETS, compact_dead_percent=100) as other,
        node.client() as bucket,
        other.client() as larger,
    ):
        load_versions(node, VALUE_BYTES)
        load_versions(other, LARGER_BYTES)
        references = {
            "with history alone": draining(bucket, items, history=True),
            f"with history alone, {LARGER_BYTES} B values": draining(larger, items, history=True),
        }
        for reference in references.items():
            measure(
                f"drain with what each change replaced, {VALUE_BYTES} B values",
                unit="M changes/s",
                amount=items / 1e6,
                ours=draining(bucket, items, before=True),
                reference=reference,
            )
