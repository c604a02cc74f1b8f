"""Random faults for the mirror, by seed: real nodes, a real table, and after it all a comparison key by key.

`world.py` has the bucket and the table and all that can befall them, `scenario.py` what befalls them under a seed,
`judge.py` the comparison; `python -m harness.lake_faults --seeds 0-199` runs many and tells.
"""
