"""The upkeep of a bucket's files: compaction, the readers that it waits for, the documents that it leaves out, and the
scrubber.
"""
