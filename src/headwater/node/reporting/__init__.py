"""Reports of a node: the lines of its log, a bound on lines that come in heaps, counts of requests and durations."""
