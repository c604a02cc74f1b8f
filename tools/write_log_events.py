"""Write docs/reference/log-events.md from the table of the events of a node's log.

`make docs` runs this; tests/test_docs.py fails when the page is stale.
"""

from pathlib import Path

from headwater.node.reporting.log_lines import EVENTS

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "log-events.md"
HEAD = """# Events of the log

Written by `make docs` from `src/headwater/node/reporting/log_lines.py`; edit there.

A node writes a line an event to stderr. With `--log-format json` it is an object: `time` (UTC), `level`, `module`,
`event`, `message`, what else is known of it (`peer`, `vbucket`, `producer` and so on), and `traceback` after a fault of
the node's own. Names of events stay from release to release; words of messages may not. The one line on stdout, which
says at any level that the node listens, and where, has the same form.

`--log-level warning,replication=info` tells more of a part of the node: the modules are the files and folders of
`headwater/node`, as in the field `module`.

| event | is |
|---|---|
"""


def page() -> str:
    """Return the whole page."""
    return HEAD + "".join(f"| `{name}` | {about} |\n" for name, about in EVENTS.items())


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
