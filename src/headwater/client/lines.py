"""A change as one line for people, with its key and value; shared by `tail` and `tap`."""

import base64
import unicodedata

SHOWN_BYTES_MAX = 160


def line(*parts: object, value: bytes = b"") -> str:
    """Return the parts and the value in one line: `512:7 mutation greeting hello world`; long values are cut."""
    value_parts = [] if not value else [_shortened(value)]
    return printable(" ".join([*map(str, parts), *value_parts]))


def printable(line_: str) -> str:
    """Return text with control characters escaped, so that the author of a document can't steer an operator's terminal.

    Characters that turn the direction of writing count as well, and line ends, so that a change is one line.
    """
    return "".join(
        _escaped(character) if unicodedata.category(character) in ("Cc", "Cf") else character for character in line_
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def text(data: bytes) -> str:
    """Return bytes as text without loss: bytes that are not UTF-8 are escaped."""
    return bytes(data).decode(errors="backslashreplace")


def key_members(key: bytes) -> dict[str, str]:
    """Return a key's members in a line of JSON: `key` for people, `key_base64` for bytes that are not UTF-8."""
    members = value_members(key)
    return {"key": members["text"]} if "text" in members else {"key": text(key), "key_base64": members["base64"]}


def value_members(value: bytes) -> dict[str, str]:
    """Return a value's member in a line of JSON: text, or base64 for bytes that are not UTF-8."""
    try:
        return {"text": bytes(value).decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _shortened(value: bytes) -> str:
    hidden_bytes = len(value) - SHOWN_BYTES_MAX
    beginning = text(value[:SHOWN_BYTES_MAX])
    return beginning + (f"... ({hidden_bytes} bytes more)" if hidden_bytes > 0 else "")
