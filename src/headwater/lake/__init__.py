"""A Delta table that is written row by position: Parquet by Arrow, deletion vectors, an index from keys to rows.

    store.py      where a table lies: read, write whole files durably, create a file only if there is none
    log.py        the table's log: protocol, schema, files, transactions, records; read, checkpointed
    vectors.py    deletion vectors as Delta keeps them, inline and in files
    index.py      hash of (vbucket, key) -> row; one index for each data file, rebuilt when it is lost, damaged or stale
    files.py      Parquet files of a task's rows
    writer.py     one task: reads changes, writes data files, returns them and the positions of dead rows
    commit.py     the driver: commits what all tasks wrote as one version of the table, or commits nothing
    upkeep.py     what is done beside the batches: folds (folds.py), checkpoints (checkpoints.py), vacuums (vacuum.py)
    layout.py     where the files of a table lie in its folder: as Delta has them, or Iceberg
    iceberg/      the same files as an Iceberg table, published from the log
    verify.py     compares the table with the bucket, and each index with its data file

Nothing here knows Spark, nodes or sockets; rows come as Arrow batches with the columns of the `dcp` source.
"""
