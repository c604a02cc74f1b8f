"""Write docs/states.md: a diagram of each table of states, drawn from the table. `make docs` runs this."""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path

from headwater.node.streams.stream import PHASES, StreamPhase
from headwater.protocol.dcp import consumer_stream, producer_stream

PAGE = Path(__file__).parent.parent / "docs" / "states.md"
HEAD = """\
<!-- Written by tools/write_states.py; change the tables in the sources instead. -->
# States

For contributors: the steps that each kind of DCP stream may take. The diagrams are drawn from the tables that the code
obeys; a step that a diagram lacks raises an error. A black dot marks the states in which a stream begins,
and its end. Behind a state's name stands the word that statistics and error messages use.
"""
TAIL = """\
## States without a table

A TAP stream moves through the steps of `TapStep` in their order (`protocol/tap/ledger.py`), and goes back for messages
that must be sent again. A vbucket may go from any state to any other (`node/vbucket/vbucket.py`);
[replication](replication.md) says when a cluster map changes it.
"""
Way = tuple[Enum, str, Enum]


def page() -> str:
    """Return the whole page."""
    phases = [(phase, "", following) for phase, allowed in PHASES.items() for following in sorted(allowed)]
    parts = [
        HEAD,
        *_section("A stream that a producer sends", "protocol/dcp/producer_stream.py", producer_stream.TRANSITIONS),
        *_section(
            "A stream that a client or a node consumes", "protocol/dcp/consumer_stream.py", consumer_stream.TRANSITIONS
        ),
        "## The source of a sent stream's changes\n",
        "`node/streams/stream.py`: a node's stream reads from disk, then from memory, or hands its vbucket over.\n",
        _diagram(PHASES, phases, (StreamPhase.BACKFILLING, StreamPhase.IN_MEMORY, StreamPhase.TAKEOVER_SEND)),
        TAIL,
    ]
    return "\n".join(parts)


def _section(title: str, path: str, table: Mapping[Enum, Mapping[Enum, Enum]]) -> Iterator[str]:
    """Yield heading, source and diagram of a table of transitions."""
    yield f"## {title}\n"
    yield f"`{path}`\n"
    yield _diagram(table, [(state, str(step.value), to) for state, ways in table.items() for step, to in ways.items()])


def _diagram(states: Iterable[Enum], ways: Iterable[Way], begins: Iterable[Enum] = ()) -> str:
    """Return a state diagram in Mermaid's notation; streams begin in `begins`, or else in the first state."""
    states, ways = list(states), list(ways)
    lines = [f'    state "{state.name}: {state.value}" as {state.name}' for state in states]
    lines += [f"    [*] --> {state.name}" for state in begins or states[:1]]
    lines += [f"    {state.name} --> {to.name}{f': {step}' if step else ''}" for state, step, to in ways]
    left = {state for state, _, _ in ways}
    lines += [f"    {state.name} --> [*]" for state in states if state not in left]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```", ""])


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
