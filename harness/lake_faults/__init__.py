"""Random faults for the mirror, by seed: real nodes, a real table, and after each scenario a comparison key by key.

`world.py` has the bucket, the table and all faults, `scenario.py` the faults of a seed, `judge.py` the comparison;
`python -m harness.lake_faults --seeds 0-199` runs many scenarios and reports them.
"""
