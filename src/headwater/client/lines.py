"""A change as one line for people, and what its key and value look like there; shared by `tail` and `tap`."""

import base64
import unicodedata

SHOWN_BYTES_MAX = 160


def line(*parts: object, value: bytes = b"") -> str:
    """The parts and the value in one line: `512:7 mutation greeting hello world`; long values are cut."""
    shown = [] if not value else [_cut(value)]
    return printable(" ".join([*map(str, parts), *shown]))


def printable(told: str) -> str:
    """The text with control characters escaped: whoever may write documents must not steer an operator's terminal.

    Those that turn the direction of writing count as well; line ends too, so that a change is one line.
    """
    return "".join(_escaped(each) if unicodedata.category(each) in ("Cc", "Cf") else each for each in told)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def text(data: bytes) -> str:
    """Bytes as text that loses nothing: what is no UTF-8 is escaped."""
    return bytes(data).decode(errors="backslashreplace")


def key_members(key: bytes) -> dict[str, str]:
    """A key in a line of JSON: `key` is for people, `key_base64` has the bytes of what is no UTF-8."""
    found = value_members(key)
    return {"key": found["text"]} if "text" in found else {"key": text(key), "key_base64": found["base64"]}


def value_members(value: bytes) -> dict[str, str]:
    """A value in a line of JSON: text, or base64 for what is no UTF-8."""
    try:
        return {"text": bytes(value).decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _cut(value: bytes) -> str:
    more = len(value) - SHOWN_BYTES_MAX
    shown = text(value[:SHOWN_BYTES_MAX])
    return shown + (f"... ({more} bytes more)" if more > 0 else "")
