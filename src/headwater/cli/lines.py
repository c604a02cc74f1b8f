"""A change as one line for people, and what its key and value look like there; shared by `tail` and `tap`."""

SHOWN_BYTES_MAX = 160


def line(*parts: object, value: bytes = b"") -> str:
    """The parts and the value in one line: `512:7 mutation greeting hello world`; long values are cut."""
    shown = [] if not value else [_cut(value)]
    return " ".join([*map(str, parts), *shown])


def text(data: bytes) -> str:
    """Bytes as text that loses nothing: what is no UTF-8 is escaped."""
    return bytes(data).decode(errors="backslashreplace")


def _cut(value: bytes) -> str:
    more = len(value) - SHOWN_BYTES_MAX
    shown = text(value[:SHOWN_BYTES_MAX]).replace("\n", "\\n")
    return shown + (f"... ({more} bytes more)" if more > 0 else "")
