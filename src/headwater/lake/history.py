"""A change log read as history: between which seqnos, and which times, each version of a document was valid.

The log is only appended to, so no row has the end of its version; the next row of the same key gives it. This module
therefore builds a query, which Spark, DuckDB, DataFusion (delta-rs) and Polars run unchanged.
"""

from __future__ import annotations

COUNTING = """SELECT c.* FROM {changes} c
WHERE c.event <> 'rollback' AND NOT EXISTS (
  SELECT 1 FROM {changes} r
  WHERE r.event = 'rollback' AND r.vbucket = c.vbucket AND r.batch > c.batch AND r.seqno < c.seqno)"""
"""The rows of a log that count: rows that a failover took back are left out."""

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
    """Return the query for the history: one row for each version of each document.

    `valid_from` and `valid_to` are seqnos of the vbucket; `valid_to` is not included, and null while the version is
    valid. `valid_from_time` and `valid_to_time` are the same as times, null if the CAS is not a clock. A version that a
    deletion ended is valid up to that deletion. The history covers the time in which the log was kept; the oldest
    version of a document begins at the last change of it that the log has.

    Args:
        changes: name of the log's table in the engine: `changes`, or "delta.`/lake/default_changes`" in Spark.
    """
    return _HISTORY.format(counting=COUNTING.format(changes=changes))
