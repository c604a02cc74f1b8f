"""Makes the `dcp` data source known to Spark without registration."""
