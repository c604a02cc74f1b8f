"""The buckets of a node: a bucket with its collections, locks and scans (`bucket.py`), and the list of all but the
first.

The list is on disk (`file.py`), with the folder and the quota of each bucket. The catalog (`catalog.py`) creates and
drops buckets.
"""
