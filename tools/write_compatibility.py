"""Write docs/compatibility.md: which commands, features and controls a node serves, and how it refuses the others.

`make docs` runs this; tests/test_docs.py fails when the page is stale, and tests/conformance/test_compatibility.py
sends a node the requests of each line.
"""

from collections.abc import Callable, Iterable
from enum import IntFlag
from pathlib import Path

from headwater.errors import BadMessage
from headwater.node import server  # noqa: F401  (it registers all commands)
from headwater.node.kv.command import COMMANDS, refusal_of
from headwater.node.kv.hello import GRANTED
from headwater.protocol.dcp.controls import CONTROLS, ControlSettings, Negotiated, apply
from headwater.protocol.dcp.opening import read_open
from headwater.protocol.dcp.stream_request import Accepted, Facts, judge, read_stream_request
from headwater.wire.dcp import Open, OpenFlag, StreamFlag, StreamRequest
from headwater.wire.dialect import requests
from headwater.wire.features import Feature, missing_prerequisites
from headwater.wire.opcodes import RETIRED, Opcode, name_of
from headwater.wire.status import Status
from headwater.wire.status import name_of as status_name
from headwater.wire.vbucket import State

PAGE = Path(__file__).parent.parent / "docs" / "compatibility.md"
SAMPLES = ("true", "1", "1.5", "high", "round-robin")
"""Values of controls; one that takes none of them is refused."""
HEAD = """# Compatibility

What a node serves of the protocol, and how it answers the rest. Written by `make docs` from the declarations of the
requests (`src/headwater/wire/`), the handlers, and the tables of features and controls; edit there. A test asks a node
that runs for every line of it (`tests/conformance/test_compatibility.py`). Layouts: [protocol](protocol/README.md); who
may send what: [rights](reference/rights.md).

## Commands

An opcode that is not listed is answered with UNKNOWN_COMMAND (0x81).

"""
FEATURES_HEAD = """
## Features

Asked for by HELLO. One that is not granted is left out of the answer. A HELLO that asks for one without what it *needs*
is answered with EINVAL.

"""
CONTROLS_HEAD = """
## Controls of DCP

Set by DCP_CONTROL on a connection to a producer; *answer* is the one to the value beside it, without Collections. A
control that is not listed is answered with EINVAL (0x04).

"""

OPEN_HEAD = """
## Flags of DCP_OPEN

*Alone* is the answer to a DCP_OPEN with this flag and no other; *needs* the flag with which it is taken. A flag that
is not listed is answered with EINVAL (0x04).

"""
STREAM_HEAD = """
## Flags of DCP_STREAM_REQ

The same, of the flags of a stream of a vbucket that is active and empty, from its beginning.

"""


def page() -> str:
    """Return the whole page."""
    commands = _table(("opcode", "command", "served", "answer"), map(_command, _opcodes()))
    features = _table(("code", "feature", "granted", "needs"), map(_feature, Feature))
    controls = _table(("control", "takes", "for example", "answer"), map(_control, CONTROLS))
    flags = ("flag", "name", "alone", "needs")
    opened = _table(flags, (_flag(each, OpenFlag, _opened) for each in OpenFlag))
    streamed = _table(flags, (_flag(each, StreamFlag, _streamed) for each in StreamFlag))
    features_and_controls = f"{FEATURES_HEAD}{features}{CONTROLS_HEAD}{controls}"
    return f"{HEAD}{commands}{features_and_controls}{OPEN_HEAD}{opened}{STREAM_HEAD}{streamed}"


def _opcodes() -> list[int]:
    return sorted(COMMANDS.keys() | set(Opcode) | RETIRED)


def _command(opcode: int) -> tuple[str, ...]:
    loud = [form.layout.opcode for form in requests(opcode) if form.layout.quiet == opcode]
    name = f"{name_of(opcode)}, quiet {name_of(loud[0])}" if loud else name_of(opcode)
    served = opcode in COMMANDS
    return f"0x{opcode:02x}", name, "yes" if served else "", "" if served else _status(refusal_of(opcode))


def _feature(feature: Feature) -> tuple[str, ...]:
    needs = ", ".join(each.name for each in sorted(missing_prerequisites([feature]).get(feature, ())))
    return f"0x{feature:02x}", feature.name, "yes" if feature in GRANTED else "", needs


def _control(key: str) -> tuple[str, ...]:
    answers = {
        value: apply(ControlSettings(), Negotiated(snappy=True), key.encode(), value.encode()) for value in SAMPLES
    }
    sample = next((value for value, status in answers.items() if status == Status.SUCCESS), SAMPLES[0])
    return f"`{key}`", CONTROLS[key].allowed, f"`{sample}`", _status(answers[sample])


def _flag(flag: IntFlag, all_flags: Iterable[IntFlag], answer: Callable[[int], int]) -> tuple[str, ...]:
    alone = answer(flag)
    needs = [other for other in all_flags if answer(flag | other) == Status.SUCCESS] if alone else []
    return f"0x{flag:03x}", flag.name, _status(alone), f"0x{needs[0]:03x}" if needs else ""


def _opened(flags: int) -> int:
    try:
        read_open(Open(key=b"name", flags=flags).frame())
    except BadMessage as bad:
        return bad.status
    return Status.SUCCESS


def _streamed(flags: int) -> int:
    sent = StreamRequest(flags=flags, start_seqno=0, snap_start_seqno=0, snap_end_seqno=0)
    facts = Facts(State.ACTIVE, 0, 0, ((1, 0),))
    try:
        request = read_stream_request(sent.frame(), collections=False)
    except BadMessage as bad:
        return bad.status
    judged = judge(request, facts, negotiated=Negotiated(), settings=ControlSettings(), live=())
    return Status.SUCCESS if isinstance(judged, Accepted) else judged.status


def _status(status: int) -> str:
    return f"{status_name(status)} (0x{status:02x})"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
