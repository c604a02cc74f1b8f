"""The measurements that claims of speed rest on: `python -m benchmarks.run`, or `make bench`."""
