"""The upkeep of a bucket's files: compaction, the readers it waits for, what it leaves out, and the scrubber."""
