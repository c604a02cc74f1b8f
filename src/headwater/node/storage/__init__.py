"""Where documents rest: an append-only log of DCP frames, and an index of it in memory.

    store.py        the promise: stage, commit, read, view, roll back, compact
    arena.py        where changes gather before they are written
    batch.py        one commit on disk: header, checksums, frames        records.py    the frames inside
    segment.py      a file of batches                                    manifest.py   which segments, in which order
    log.py          writing: append, reserve, roll                       recovery.py   reading it all at start
    columns.py      the memory of the index (its kernels: headwater.kernels.index, history, gather)
    views.py        a vbucket at one point in time                       compaction.py dropping what nobody can ask for
    disk.py         the file system, as an argument

docs/storage.md has the formats, byte by byte, and the reasons.
"""
