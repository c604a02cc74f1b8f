"""The buckets of a node: a bucket with its collections, locks and scans (`bucket.py`), and the list of all but the
first.

The list is on disk (`catalog.py`), with the folder and the quota of each bucket. The catalog makes and drops buckets.

The list of these is on disk (`catalog.py`), with their folders, their quota, and how they are made and dropped.
"""
