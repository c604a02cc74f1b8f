"""A change log read as history: for how long each version of a document held, by seqno and by time.

The log itself only grows, so no row of it says when it ended; that is a question to those that follow. It is asked as a
query, which Spark, DuckDB, DataFusion (delta-rs) and Polars take as it is.
"""

from __future__ import annotations

COUNTING = """SELECT c.* FROM {changes} c
WHERE c.event <> 'rollback' AND NOT EXISTS (
  SELECT 1 FROM {changes} r
  WHERE r.event = 'rollback' AND r.vbucket = c.vbucket AND r.batch > c.batch AND r.seqno < c.seqno)"""
"""The rows of a log that count: what a failover took back does not."""

_HISTORY = """WITH counting AS (
{counting}
), versions AS (
  SELECT c.*,
    LEAD(seqno) OVER (PARTITION BY vbucket, key ORDER BY seqno) AS valid_to,
    LEAD(modified_at) OVER (PARTITION BY vbucket, key ORDER BY seqno) AS valid_to_time
  FROM counting c
)
SELECT key, value, vbucket, seqno AS valid_from, valid_to, modified_at AS valid_from_time, valid_to_time,
  vb_uuid, cas, rev_seqno, flags, expiry, datatype, batch
FROM versions WHERE event = 'mutation'"""


def query(changes: str) -> str:
    """Return the query of a history: a row for each version that a document had.

    `valid_from` and `valid_to` are seqnos of the vbucket, the second not included and null while the version holds;
    `valid_from_time` and `valid_to_time` are the same as times, null where a CAS is no clock. A version that ended by
    a deletion ends where that is. The log tells of the versions that came while it was kept, the oldest of them with
    the place of its last change.

    Args:
        changes: the log, as the engine names a table: `changes`, or "delta.`/lake/default_changes`" in Spark.
    """
    return _HISTORY.format(counting=COUNTING.format(changes=changes))
