"""The commands: `headwater serve`, `load`, `tail` and the rest, a file each; `app.py` puts them together.

Only this package knows typer and rich, reads the environment and prints. A command imports what it needs inside its
function, so that `headwater get` does not wait for Spark.
"""
