"""The reference pages under docs/protocol, printed from the declarations.

    python tools/protocol_pages.py docs/protocol           write the pages
    python tools/protocol_pages.py --check docs/protocol   name the stale ones; exit status 1 if there are any

A page is a family of messages, or the tables they share. `make docs` runs this; `tests/test_protocol_pages.py` fails
when a page is stale.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum, IntFlag
from pathlib import Path
from types import ModuleType

from headwater.wire import (
    admin,
    bootstrap,
    datatype,
    dcp,
    documents,
    features,
    flags,
    meta,
    opcodes,
    scans,
    status,
    subdoc,
    tap,
    upr,
)
from headwater.wire import framing as framing_module
from headwater.wire import header as header_module
from headwater.wire import vbucket as vbucket_module
from headwater.wire.dialect import answers_of, messages
from headwater.wire.failure import Failure
from headwater.wire.layout import ANY_FAILURE, ANY_STATUS, NO_OPCODE, Done, Layout, Message
from headwater.wire.privilege import in_words
from headwater.wire.sections import Field, Fixed, Section

__all__ = ["main", "pages", "stale"]

_BANNER = "<!-- Printed by `python tools/protocol_pages.py`; change the declarations instead. -->"
_PAGES = {"dcp": "dcp.md", "upr": "upr.md", "tap": "tap.md"}
"""Module -> the page with its messages; messages of all other modules stand in memcached.md."""


def pages() -> dict[str, str]:
    """Return every page by its file name."""
    return {
        "README.md": _index(),
        "dcp.md": _family("DCP", [dcp], [flags]),
        "upr.md": _family("UPR", [upr], []),
        "tap.md": _family("TAP", [tap], [tap]),
        "memcached.md": _family("memcached", [bootstrap, documents, subdoc, meta, scans, admin], [meta, subdoc]),
        "numbers.md": _numbers(),
    }


def _index() -> str:
    rows = [
        ("[dcp.md](dcp.md)", "the streaming protocol, all versions of its messages"),
        ("[upr.md](upr.md)", "where its predecessor differs"),
        ("[tap.md](tap.md)", "the first of the three"),
        ("[memcached.md](memcached.md)", "bootstrap, documents, vbuckets, collections"),
        ("[numbers.md](numbers.md)", "opcodes, statuses, features, datatypes, states"),
    ]
    return "\n".join(
        [
            _BANNER,
            "# The protocol, message by message",
            "",
            _text(header_module.__doc__),
            "",
            *_table(("page", "what"), rows),
            "",
            "The source cites a digest of the public documents by file and section: `wire.md 1.3`, `dcp.md 8.2`. The",
            "numbered sections are the digest's; the pages here are printed from the code.",
            "",
            _text(framing_module.__doc__).split("\n\n")[-1],
            "",
            *_example(),
        ]
    )


def _example() -> list[str]:
    """Return the lines that explain one frame byte by byte: the example of commands/mutation.md."""
    frame = dcp.Mutation(vbucket=0x210, opaque=0x1210, key=b"hello", value=b"world", by_seqno=4, rev_seqno=1).frame()
    header = frame.encode()[: header_module.HEADER_BYTES]
    parts = (("header", header), ("extras", frame.extras), ("key", frame.key), ("value", frame.value))
    rows = [(name, str(len(data)), f"`{data.hex(' ')}`") for name, data in parts]
    caption = f"A DCP mutation of vbucket {frame.vbucket}, seqno 4: {len(frame)} bytes in all."
    return ["## An example", "", caption, "", *_table(("section", "bytes", "hex"), rows), ""]


def _family(title: str, modules: Sequence[ModuleType], enums: Sequence[ModuleType]) -> str:
    """Return the page of one family: its description, its messages by opcode, its flags."""
    lines = [_BANNER, f"# {title}", ""]
    for module in modules:
        lines += [_text(module.__doc__), ""]
    declared = [message for module in modules for message in messages(module)]
    lines += _summary(declared)
    for each in declared:
        lines += ["", *_message(each)]
    if admin in modules:
        lines += ["", *_message(Done), "", *_message(Failure)]
    for enum in (enum for module in enums for enum in _enums(module)):
        lines += ["", *_enum(enum)]
    return "\n".join(lines) + "\n"


def _summary(declared: Iterable[type[Message]]) -> list[str]:
    """Return a table of opcodes and their messages, requests before their answers."""
    by_opcode: dict[int, list[str]] = {}
    declared = sorted(declared, key=lambda each: each.layout.is_response)
    for each in declared:
        for opcode in each.layout.opcodes:
            by_opcode.setdefault(opcode, []).append(_link(each))
    for each in declared:
        for opcode in each.layout.opcodes:
            answers = map(_link, answers_of(each))
            by_opcode[opcode] += [link for link in answers if link not in by_opcode[opcode]]
    rows = [
        (f"0x{opcode:02x}", opcodes.name_of(opcode), ", ".join(names)) for opcode, names in sorted(by_opcode.items())
    ]
    return _table(("opcode", "command", "messages"), rows)


def _message(cls: type[Message]) -> list[str]:
    layout = cls.layout
    lines = [f"## {cls.__name__}", "", _text(cls.__doc__), "", *_facts(cls)]
    for section in (layout.extras, layout.body):
        if section and section.fields:
            lines += ["", *_section(section)]
    return lines


def _facts(cls: type[Message]) -> list[str]:
    """Return a message's header facts as a list."""
    layout = cls.layout
    opcode = f"0x{layout.opcode:02x}" if layout.opcode != NO_OPCODE else "that of the request"
    lines = [f"- {'response' if layout.is_response else 'request'}, magic 0x{layout.magic:02x}, opcode {opcode}"]
    if layout.is_response:
        several = {ANY_STATUS: "any", ANY_FAILURE: "any but success"}
        meaning = several.get(layout.status) or f"0x{layout.status:02x} {status.name_of(layout.status)}"
        lines.append(f"- status: {meaning}")
    if layout.engine:
        lines.append("- engine-private section between extras and key: `engine_specific`")
    value = "the fields below" if layout.body else layout.value.value
    return [*lines, f"- key: {layout.key.value}", f"- value: {value}", *_consequences(cls)]


def _consequences(cls: type[Message]) -> list[str]:
    """Return the consequences of a request: the meaning of its CAS, its quiet form, its answers."""
    layout, answers = cls.layout, list(map(_link, answers_of(cls)))
    lines = [] if layout.privilege is None else [_needed(layout)]
    lines += ["- CAS: may be given"] if layout.cas else []
    if layout.quiet != NO_OPCODE:
        left_out = f"not answered when the status is 0x{layout.silent:02x} {status.name_of(layout.silent)}"
        lines.append(f"- quiet form: opcode 0x{layout.quiet:02x} {opcodes.name_of(layout.quiet)}, {left_out}")
    if layout.refused:
        lines.append(f"- a node of headwater refuses it: 0x{layout.refused:02x} {status.name_of(layout.refused)}")
    if answers:
        lines.append(f"- answer: {' or '.join(answers)}")
    return lines


def _needed(layout: Layout) -> str:
    """Return the right that a request needs, and the rights that some of its flags need in addition."""
    right = in_words(layout.privilege) if layout.privilege else "none, before a login too"
    besides = (f"; {each.about}: {in_words(each.privilege)} as well" for each in layout.beyond)
    return f"- privilege: {right}{''.join(besides)}"


def _link(message: type[Message]) -> str:
    page = _PAGES.get(message.__module__.rpartition(".")[2], "memcached.md")
    return f"[{message.__name__}]({page}#{message.__name__.lower()})"


def _section(section: Section) -> list[str]:
    lengths = " or ".join(map(str, sorted(section.shapes))) if isinstance(section, Fixed) else "as the fields take"
    lines = [f"{section.place.capitalize()}, {lengths} bytes:" if isinstance(section, Fixed) else "Value:", ""]
    return lines + _table(("offset", "type", "field", "meaning"), _rows(section.fields))


def _rows(fields: Iterable[Field]) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each field; offsets are given as long as they are certain."""
    offset: int | None = 0
    for field in fields:
        presence = " (may be absent)" if field.optional and not field.when else ""
        condition = f" (with flag 0x{field.when:x})" if field.when else presence
        yield "" if offset is None else str(offset), str(field.codec), f"`{field.name}`", field.about + condition
        sized = offset is not None and field.codec.size is not None and not field.optional
        offset = (offset or 0) + (field.codec.size or 0) if sized else None


def _enums(module: ModuleType) -> Iterator[type[IntEnum] | type[IntFlag]]:
    for enum in vars(module).values():
        here = inspect.isclass(enum) and enum.__module__ == module.__name__
        if here and issubclass(enum, IntEnum | IntFlag):
            yield enum


def _enum(enum: type[IntEnum] | type[IntFlag]) -> list[str]:
    lines = [f"## {enum.__name__}", "", _text(enum.__doc__), ""]
    return lines + _table(("value", "name"), [(f"0x{each.value:02x}", each.name or "") for each in enum])


def _numbers() -> str:
    """Return the page of the tables all families share."""
    lines = [_BANNER, "# Numbers", ""]
    for module in (opcodes, status, features, datatype, vbucket_module, framing_module):
        for enum in _enums(module):
            lines += [*_enum(enum), ""]
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _text(doc: str | None) -> str:
    return inspect.cleandoc(doc or "")


def stale(folder: Path) -> list[Path]:
    """Return the pages that are missing in `folder`, or differ from the declarations."""
    paths = {folder / name: text for name, text in pages().items()}
    return [path for path, text in paths.items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with --check only compare them; return the exit status."""
    check = "--check" in arguments
    folder = Path(next((argument for argument in arguments if argument != "--check"), "docs/protocol"))
    found = stale(folder)
    for path in found:
        print(f"{path}: {'stale; run python tools/protocol_pages.py' if check else 'written'}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(pages()[path.name], encoding="utf-8")
    return 1 if check and found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
