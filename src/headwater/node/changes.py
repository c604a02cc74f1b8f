"""Stage changes of other nodes, unchanged; the consumers of DCP and TAP use this.

Source: dcp 9 ("apply verbatim"); tap.md 5.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.protocol.dcp.consumer_changes import Change


def stage(bucket: Bucket, vbucket: int, change: Change, hops: int = 0) -> int:
    """Stage a change; return its seqno: the producer's, or the vbucket's next one if the producer sent none (0).

    "Never generate new ones" (dcp 9): a new CAS is generated only if the change has none.

    Args:
        bucket: the bucket.
        vbucket: the vbucket's number.
        change: the change.
        hops: the number of nodes that the change has passed by TAP; DCP has no loops, and does not count hops.

    Raises:
        ArenaFull: there is no room; stage the change again after the next commit.
        StorageError: the seqno is not above the vbucket's high seqno, or the disk has no room.
    """
    cas, seqno = change.cas or bucket.next_cas(vbucket), change.seqno or None
    if not change.deleted:
        return bucket.store.staging.mutation(
            vbucket,
            change.key,
            change.value,
            seqno=seqno,
            cas=cas,
            rev_seqno=change.rev_seqno,
            flags=change.flags,
            expiry=change.expiry,
            datatype=change.datatype,
            hops=hops,
            collection=change.collection,
        )
    return bucket.store.staging.deletion(
        vbucket,
        change.key,
        change.value,
        seqno=seqno,
        cas=cas,
        rev_seqno=change.rev_seqno,
        delete_time=bucket.now() if change.delete_time is None else change.delete_time,
        now=bucket.now(),
        datatype=change.datatype,
        expired=change.expired,
        hops=hops,
        collection=change.collection,
    )
