"""The buckets of a node beside its first: the list of them on disk, their folders, how they are made and dropped."""
