"""JSON as people read it: a line for each member, and characters in place of their escapes.

It is made of the text and not of the values: numbers keep all of their digits, members their order, and names that come
twice come twice. It is for reading only; what is edited and stored are the bytes themselves.
"""

from __future__ import annotations

import json
import re
import unicodedata

from headwater.wire.json_text import read_json

INDENT = "  "
CHARACTERS_MAX = 256 << 10
"""Short members deep inside take many times as much as the text; what goes beyond this is cut."""
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2})?|.)")


def indented(value: bytes) -> str | None:
    """Return a JSON text with a line for each member; None where the bytes are none, or nested over 64 levels deep."""
    try:
        read_json(value)
        text = value.decode()
    except ValueError:
        return None
    lines, depth, before, size = [""], 0, "", 0
    for part in TOKEN.findall(text):
        if part in "}]":
            depth -= 1
            if before not in "{[":
                lines.append(INDENT * depth)
        elif before in ("{", "[", ","):
            lines.append(INDENT * depth)
        shown = _shown(part) if part[0] == '"' else ": " if part == ":" else part
        lines[-1] += shown
        depth += part in "{["
        before = part
        size += len(shown) + len(INDENT) * depth
        if size > CHARACTERS_MAX:
            return "\n".join(
                [*lines, f"\u2026 (cut: {len(value):,} bytes take more than {CHARACTERS_MAX:,} characters so)"]
            )
    return "\n".join(lines)


def _shown(text: str) -> str:
    """A string with its characters in place of escapes, but for those that would not be seen as what they are."""
    return ESCAPE.sub(lambda found: _character(found[0]), text)


def _character(escape: str) -> str:
    if escape[1] != "u":
        return "/" if escape[1] == "/" else escape
    character: str = json.loads(f'"{escape}"')
    is_plain = character not in '"\\' and all(unicodedata.category(each)[0] not in "CZ" for each in character)
    return character if is_plain else escape
