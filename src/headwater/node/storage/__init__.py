"""The store of documents: an append-only log of DCP frames, and an index of it in memory.

    api.py                          the interface for the rest of the node
    store.py                        Store, which owns the parts below
    staging.py, committing.py       changes before they are durable; batches made durable, or undone
    arena.py                        the memory of staged changes
    columns.py, slots.py            the memory of the index
    batch.py, records.py            one commit on disk, and its frames
    segment.py, manifest.py         a file of batches; the list of these files
    log.py, recovery.py, replay.py  writing the log; reading it at the start
    reserve.py, disk.py             room for a full disk; the file system, as an argument
    views.py                        a vbucket at one point in time
    compaction.py, compacted.py     the log without superseded versions
    synced.py                       the synced end of the log, in a separate file

Kernels: headwater.kernels.index, history, gather, compact. docs/storage.md has the formats, byte by byte, and the
reasons.
"""
