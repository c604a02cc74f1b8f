"""From bytes to what is asked: a line of words, and the block of data behind it where the command has one.

    set <key> <flags> <exptime> <bytes> [noreply]\\r\\n
    <data>\\r\\n

A line ends with a line feed, words are parted by blanks. Lengths are held against what is allowed before their bytes
are waited for; data too large to keep is to be swallowed, so that the conversation goes on behind it. Source: kv.md 7.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.protocol.text.words import integer
from headwater.wire.header import VALUE_BYTES_MAX

__all__ = ["KEYS_LINE_BYTES_MAX", "LINE_BYTES_MAX", "TAKES_DATA", "Asked", "CommandReader"]

LINE_BYTES_MAX = 2048
KEYS_LINE_BYTES_MAX = 1 << 20
"""Of a line that asks for many keys."""
_LONG = (b"get ", b"gets ", b"gat ", b"gats ")
_SIZE_AT = dict.fromkeys((b"set", b"add", b"replace", b"append", b"prepend", b"cas"), 4) | {b"ms": 2}
"""Which word tells how long the data is."""
_SIZE_WORDS = max(_SIZE_AT.values()) + 1
TAKES_DATA = frozenset(_SIZE_AT)
_CLAIM_MAX = (1 << 31) - 3
_END = b"\r\n"

TOO_LONG = b"CLIENT_ERROR line too long\r\n"
TOO_LARGE = b"SERVER_ERROR object too large for cache\r\n"
BAD_CHUNK = b"CLIENT_ERROR bad data chunk\r\n"


@dataclass(frozen=True, slots=True)
class Asked:
    """One command.

    Attributes:
        words: of its line; block: the data, without its end; None where there is none.
        size: bytes that it took. swallows: so many bytes behind it are data that nobody wants.
        problem: the line to answer with instead of carrying it out. closes: and nothing can follow.
    """

    words: tuple[bytes, ...]
    size: int
    block: bytes | None = None
    problem: bytes = b""
    swallows: int = 0
    closes: bool = False


class CommandReader:
    """Takes commands off the front of what has come; how the bytes were cut on their way changes nothing.

    Attributes:
        block_bytes_max: how long data may be.
    """

    def __init__(self) -> None:
        self.block_bytes_max = VALUE_BYTES_MAX
        self._searched = 0  # so many bytes in front are known to hold no line feed

    def read(self, data: memoryview) -> Asked | None:
        """The command in front, or None while it is not whole."""
        line = self._line(data)
        if line is None:
            return None
        if not line:
            return Asked((), len(data), problem=TOO_LONG, closes=True)
        words = tuple(word for word in line[:-1].removesuffix(b"\r").split(b" ") if word)
        claimed = _claimed(words)
        if claimed is None:
            return self._taken(Asked(words, len(line)))
        if claimed > self.block_bytes_max:
            return self._taken(Asked(words, len(line), problem=TOO_LARGE, swallows=claimed + len(_END)))
        size = len(line) + claimed + len(_END)
        if len(data) < size:
            return None
        return self._taken(_with_block(words, bytes(data[len(line) : size]), size))

    def wanted(self, data: memoryview) -> int:
        """How many bytes the command in front has in all, as far as that is known; more than there are if it is not."""
        line = self._line(data)
        if line is None:
            return len(data) + 1
        claimed = _claimed(tuple(line.split(maxsplit=_SIZE_WORDS))) if line else None
        if claimed is None or claimed > self.block_bytes_max:
            return len(line)
        return len(line) + claimed + len(_END)

    def begin(self) -> None:
        """Begin anew: what is in front now was not there before."""
        self._searched = 0

    def _taken(self, asked: Asked) -> Asked:
        self._searched = 0
        return asked

    def _line(self, data: memoryview) -> bytes | None:
        """The line in front with its end; None while it is not whole, empty when it is too long."""
        most = KEYS_LINE_BYTES_MAX if self._searched >= LINE_BYTES_MAX else LINE_BYTES_MAX
        end = self._searched + bytes(data[self._searched : most]).find(b"\n")
        if end >= self._searched:
            return bytes(data[: end + 1])
        self._searched = min(len(data), most)
        if len(data) < most:
            return None
        if most == LINE_BYTES_MAX and bytes(data[:5]).startswith(_LONG):
            return self._line(data)
        return b""


def _claimed(words: tuple[bytes, ...]) -> int | None:
    """How long the data behind a line is by its own words; None where there is none, or no length."""
    at = _SIZE_AT.get(words[0]) if words else None
    claimed = None if at is None or len(words) <= at else integer(words[at])
    return claimed if claimed is not None and 0 <= claimed <= _CLAIM_MAX else None


def _with_block(words: tuple[bytes, ...], block: bytes, size: int) -> Asked:
    problem = b"" if block.endswith(_END) else BAD_CHUNK
    return Asked(words, size, block[: -len(_END)], problem)
