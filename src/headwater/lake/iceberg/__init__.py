"""An Iceberg table (format version 3) over the data files of a Delta table, published from the Delta table's log.

    entry.py      what the rest of the lake calls: publish after a commit, expire, list files that nobody needs
    schema.py     a log's columns as an Iceberg schema: field ids that stay, and the mapping from names to them
    puffin.py     files of deletion vectors
    manifests.py  manifests and manifest lists, as Avro
    metadata.py   the table's metadata, as JSON, and its snapshots
    publish.py    brings the Iceberg table to the state of the log, by one atomic step
    check.py      compares the two, file by file
    place.py      where the table's files lie, and its name in a catalog
    catalogs.py   brings a catalog to the newest metadata: REST, SQL, Glue, Hive

The Delta log alone has the state and the position of the table (docs/decisions/0152): everything here can be built from
it again. The files lie in the folder `_iceberg` of a table of Delta, which vacuums of Delta leave alone, or in the
table's own (`headwater/lake/layout.py`); data files lie where they are.
"""
