"""The buckets of a node: one with its collections, locks and scans (`bucket.py`), and those beside the first.

The list of these is on disk (`catalog.py`), with their folders, their quota, and how they are made and dropped.
"""
