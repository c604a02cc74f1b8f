"""One slice of the keys: its state, its place in history, and who listens to it."""
