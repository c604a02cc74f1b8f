"""A Delta table that is written row by position: Parquet by Arrow, deletion vectors, an index from keys to rows.

    store.py      where a table lies: read, write whole files durably, create a file only if there is none
    log.py        the table's log: protocol, schema, files, transactions, records; read, checkpointed
    vectors.py    deletion vectors as Delta keeps them, inline and in files
    index.py      hash of (vbucket, key) -> row, one for each data file, rebuilt when it is not what it should be
    files.py      Parquet files of a task's rows
    writer.py     one task: changes in, files and dead positions out
    commit.py     the driver: what tasks wrote becomes one version of the table, or nothing does
    upkeep.py     folding small files, rewriting mostly dead ones, vacuum
    verify.py     is the table what the bucket is, and the index what the files are

Nothing here knows Spark, nodes or sockets; rows come as Arrow batches with the columns of the `dcp` source.
"""
