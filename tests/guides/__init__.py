"""The blocks of code in README.md and docs/: each is run by a test, or says why it is not."""
