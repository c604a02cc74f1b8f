"""The few HTTP questions that Couchbase's clients ask a node, answered on the port of everything else."""
