"""Converts bytes to commands: a line of words, and the block of data after it if the command has one.

    set <key> <flags> <exptime> <bytes> [noreply]\\r\\n
    <data>\\r\\n

A line ends with a line feed, blanks separate words. Lengths are checked against the limits before the data are
received; data that are too large are skipped, so that the conversation continues after them. Source: kv.md 7.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.protocol.text.words import integer
from headwater.wire.header import VALUE_BYTES_MAX

__all__ = ["KEYS_LINE_BYTES_MAX", "LINE_BYTES_MAX", "TAKES_DATA", "CommandReader", "TextCommand"]

LINE_BYTES_MAX = 2048
KEYS_LINE_BYTES_MAX = 1 << 20
"""The longest line with many keys."""
_LONG = (b"get ", b"gets ", b"gat ", b"gats ")
_SIZE_AT = dict.fromkeys((b"set", b"add", b"replace", b"append", b"prepend", b"cas"), 4) | {b"ms": 2}
"""The position of the word that gives the length of the data."""
_SIZE_WORDS = max(_SIZE_AT.values()) + 1
TAKES_DATA = frozenset(_SIZE_AT)
_CLAIM_MAX = (1 << 31) - 3
_END = b"\r\n"

TOO_LONG = b"CLIENT_ERROR line too long\r\n"
TOO_LARGE = b"SERVER_ERROR object too large for cache\r\n"
BAD_CHUNK = b"CLIENT_ERROR bad data chunk\r\n"


@dataclass(frozen=True, slots=True)
class TextCommand:
    """One command of the text protocol.

    Attributes:
        words: the words of the line; block: the data, without the line end; None if there are no data.
        size: size of the command in bytes. swallows: number of data bytes after it to skip.
        problem: error line to send instead of executing the command; empty for none. closes: True if the connection
            must be closed after it.
    """

    words: tuple[bytes, ...]
    size: int
    block: bytes | None = None
    problem: bytes = b""
    swallows: int = 0
    closes: bool = False


class CommandReader:
    """Cuts commands from received bytes, split at any point.

    Attributes:
        block_bytes_max: the largest size of data, in bytes.
    """

    def __init__(self) -> None:
        self.block_bytes_max = VALUE_BYTES_MAX
        self._searched = 0  # so many bytes in front are known to hold no line feed

    def read(self, data: memoryview) -> TextCommand | None:
        """Return the first command, or None while it is not complete."""
        line = self._line(data)
        if line is None:
            return None
        if not line:
            return TextCommand((), len(data), problem=TOO_LONG, closes=True)
        words = tuple(word for word in line[:-1].removesuffix(b"\r").split(b" ") if word)
        claimed = _claimed_length(words)
        if claimed is None:
            return self._take_command(TextCommand(words, len(line)))
        if claimed > self.block_bytes_max:
            return self._take_command(TextCommand(words, len(line), problem=TOO_LARGE, swallows=claimed + len(_END)))
        size = len(line) + claimed + len(_END)
        if len(data) < size:
            return None
        return self._take_command(_with_block(words, bytes(data[len(line) : size]), size))

    def wanted(self, data: memoryview) -> int:
        """Return the size in bytes of the first command as far as known; above the size of `data` if incomplete."""
        line = self._line(data)
        if line is None:
            return len(data) + 1
        claimed = _claimed_length(tuple(line.split(maxsplit=_SIZE_WORDS))) if line else None
        if claimed is None or claimed > self.block_bytes_max:
            return len(line)
        return len(line) + claimed + len(_END)

    def begin(self) -> None:
        """Forget the state of the current command: the next call has different bytes."""
        self._searched = 0

    def _take_command(self, command: TextCommand) -> TextCommand:
        self._searched = 0
        return command

    def _line(self, data: memoryview) -> bytes | None:
        """Return the first line with its end; None while it is incomplete, empty if it is too long."""
        bytes_max = KEYS_LINE_BYTES_MAX if self._searched >= LINE_BYTES_MAX else LINE_BYTES_MAX
        end = self._searched + bytes(data[self._searched : bytes_max]).find(b"\n")
        if end >= self._searched:
            return bytes(data[: end + 1])
        self._searched = min(len(data), bytes_max)
        if len(data) < bytes_max:
            return None
        if bytes_max == LINE_BYTES_MAX and bytes(data[:5]).startswith(_LONG):
            return self._line(data)
        return b""


def _claimed_length(words: tuple[bytes, ...]) -> int | None:
    """Return the length of data that a line announces; None if it announces none, or an invalid one."""
    at = _SIZE_AT.get(words[0]) if words else None
    claimed = None if at is None or len(words) <= at else integer(words[at])
    return claimed if claimed is not None and 0 <= claimed <= _CLAIM_MAX else None


def _with_block(words: tuple[bytes, ...], block: bytes, size: int) -> TextCommand:
    problem = b"" if block.endswith(_END) else BAD_CHUNK
    return TextCommand(words, size, block[: -len(_END)], problem)
