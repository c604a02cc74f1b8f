"""JSON for reading: a line for each member, and characters instead of their escapes.

The lines are made from the text and not from the values: numbers keep all of their digits, members their order, and a
name that comes twice is shown twice. They are for reading only; the bytes themselves are edited and stored.
"""

from __future__ import annotations

import json
import re
import unicodedata

from headwater.wire.json_text import read_json

INDENT = "  "
CHARACTERS_MAX = 256 << 10
"""The longest result; deeply nested short members take many times as much as the text."""
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2})?|.)")


def indented(value: bytes) -> str | None:
    """Return a JSON text with a line for each member; None if it is not JSON, or nested over 64 levels deep."""
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
        piece = _plain_string(part) if part[0] == '"' else ": " if part == ":" else part
        lines[-1] += piece
        depth += part in "{["
        before = part
        size += len(piece) + len(INDENT) * depth
        if size > CHARACTERS_MAX:
            return "\n".join(
                [*lines, f"\u2026 (cut: {len(value):,} bytes take more than {CHARACTERS_MAX:,} characters so)"]
            )
    return "\n".join(lines)


def _plain_string(text: str) -> str:
    """Return a string with characters instead of escapes, except for characters that would be invisible or misread."""
    return ESCAPE.sub(lambda escape: _character(escape[0]), text)


def _character(escape: str) -> str:
    if escape[1] != "u":
        return "/" if escape[1] == "/" else escape
    character: str = json.loads(f'"{escape}"')
    is_plain = character not in '"\\' and all(unicodedata.category(each)[0] not in "CZ" for each in character)
    return character if is_plain else escape
