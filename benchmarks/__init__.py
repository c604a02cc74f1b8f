"""What a claim of speed rests on: `python -m benchmarks.run`, or `make bench`."""
