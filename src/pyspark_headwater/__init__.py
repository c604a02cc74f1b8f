"""Makes the `dcp` data source known to Spark without registration.

Spark imports every top-level module named pyspark_* and takes its `DefaultSource`. A module that raises makes it
forget the sources of all the others as well, so a headwater that can't be imported is passed over here:
`format("dcp")` is then unknown, and `import headwater.spark.source` tells why.
"""

from contextlib import suppress

with suppress(ImportError):
    from headwater.spark.source import DcpDataSource as DefaultSource

    __all__ = ["DefaultSource"]
