"""The upkeep of a bucket's files: compaction, the readers that it waits for, the documents that it omits, and the
scrubber.
"""
