"""One reader's way through a vbucket: backfill, then what is written after it."""
