"""The buckets of a node: a bucket with its collections, locks and scans (`bucket.py`), and the catalog, which creates
and drops all buckets except the first (`catalog.py`).

The list of these buckets is on disk (`file.py`), with the folder (`folder.py`) and the quota (`quota.py`) of each.
"""
