"""Which reader of lakes reads which of our tables: every kind of table, read by every reader that can be had.

`kinds.py` writes the tables and says which rows they must have, by the bucket and without the mirror's code;
`environments.py` has the readers and where each is installed; `reading.py` runs in a reader's own environment;
`matrix.py` compares. `python -m harness.readers` runs all of it and keeps what was seen in `results.json`, from which
`tools/write_readers.py` writes docs/reference/readers.md.
"""
