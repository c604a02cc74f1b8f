"""The store of documents: an append-only log of DCP frames, and an index of it in memory.

    api.py the page that the node reads store.py Store, which owns its parts staging.py changes on their way: gathering
        committing.py a batch made durable, or undone arena.py where changes gather columns.py, slots.py the memory of
        the index batch.py one commit on disk records.py the frames inside segment.py a file of batches manifest.py
        which segments, in which order log.py writing: append, reserve, roll recovery.py, replay.py reading it all at
        start reserve.py room for when the disk is full views.py a vbucket at one point in time compaction.py,
        compacted.py the log without dead versions synced.py the synced end of the log, in a file of its own disk.py the
        file system, as an argument

Kernels: headwater.kernels.index, history, gather, compact. docs/storage.md has the formats, byte by byte, and
the reasons.
"""
