"""`headwater cluster`: several nodes as one bucket. A file for each command; `group.py` puts them together."""
