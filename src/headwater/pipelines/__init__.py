"""Ready streaming jobs on Spark, a file each, and the session they run in."""
