"""One reader's progress through a vbucket: the backfill, then the changes written after it."""
