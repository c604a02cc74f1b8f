"""One part of the keys: its state, its history, and its readers."""
