"""The few HTTP requests that Couchbase's clients send to a node, answered on the same port as everything else."""
