"""The measurements behind all claims of speed: `python -m benchmarks.run`, or `make bench`."""
