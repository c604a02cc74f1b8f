"""Backups of a bucket: the changes of every vbucket as Parquet files, a chain of a full backup and its increments.

    archive.json                    which backups there are
    backups/20261122T154254Z-full/
        manifest.json               written last: a folder without it is no backup
        00000-00000.parquet ...     rows as the `dcp` source of Spark has them

`create.py` reads the bucket, `restore.py` writes it, `verify.py` looks for damage, `prune.py` removes old chains;
`archive.py` and `manifest.py` are the two kinds of JSON files; `place.py` is a folder or an object store.
"""
