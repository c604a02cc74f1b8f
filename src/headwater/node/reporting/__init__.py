"""Reports of a node: the lines of its log, limits for repeated lines, counts of requests and durations."""
