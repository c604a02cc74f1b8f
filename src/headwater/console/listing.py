"""Keys by their prefix, a page at a time, with a time limit of a few seconds.

A bucket has no order of keys: the vbuckets are searched in the order of their numbers, several at once if they have few
keys. A page ends after a number of keys, or when its time is over; the next one continues after the vbucket and the key
in its address. Keys written meanwhile may be missed or shown, as in any paged list.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.console.editing import Form, key_field, read_part
from headwater.console.lookout import plain
from headwater.errors import OptionError, StatusError, TransportError

if TYPE_CHECKING:
    from headwater.client.aio import AsyncDocuments
    from headwater.client.scans import KeyPage

KEYS_SHOWN = 100
LOOK_SECONDS = 4.0
"""The time for a page: a rare prefix among a hundred million takes longer; the page says how far it looked."""
AT_ONCE_MAX = 16


@dataclass(frozen=True, slots=True)
class ListPlace:
    """A place in the list: after a key of a vbucket, or before all of its keys."""

    vbucket: int = 0
    after: bytes = b""

    @classmethod
    def of(cls, fields: Mapping[str, str], vbuckets: int) -> ListPlace:
        """Return the place in a page's address.

        Raises:
            OptionError: it is not a valid place.
        """
        text = fields.get("from", "") or "0"
        if not (text.isascii() and text.isdecimal() and len(text) < 6 and int(text) < vbuckets):
            raise OptionError("from", text[:40], f"one of the bucket's {vbuckets} vbuckets, 0 to {vbuckets - 1}")
        return cls(int(text), read_part(fields.get("after", ""), Form.HEX))

    def fields(self) -> dict[str, str]:
        """Return the place as fields of an address."""
        return {"from": str(self.vbucket)} | ({"after": self.after.hex()} if self.after else {})


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key of the list: its vbucket, and its notation in a field of a form."""

    key: bytes
    vbucket: int
    text: str
    form: str


@dataclass(frozen=True, slots=True)
class KeyList:
    """A part of the list.

    Attributes:
        rows: in the order of vbuckets and keys.
        looked: the vbucket up to which the list was searched. vbuckets: the number of all.
        more: beginning of the next part; None at the end.
        problem: why vbucket `looked` was left out; empty if it was searched.
    """

    rows: list[ListedKey]
    looked: int
    vbuckets: int
    more: ListPlace | None
    problem: str = ""


async def list_keys(
    documents: AsyncDocuments,
    vbuckets: int,
    prefix: bytes,
    place: ListPlace,
    clock: Callable[[], float] = time.monotonic,
) -> KeyList:
    """Return the keys with a prefix from a place on: at most KEYS_SHOWN, and as many as LOOK_SECONDS allow.

    Raises:
        StatusError: the request is refused, which would be so for all vbuckets.
    """
    until, at_once, rows, at = clock() + LOOK_SECONDS, 1, list[ListedKey](), place.vbucket
    while at < vbuckets and len(rows) < KEYS_SHOWN and clock() < until:
        wave = range(at, min(at + at_once, vbuckets))
        afters = {vb: place.after if vb == place.vbucket else b"" for vb in wave}
        pages = await _pages_of(documents, prefix, afters, KEYS_SHOWN - len(rows))
        for vb, page in zip(wave, pages, strict=True):
            if isinstance(page, BaseException):
                next_place = ListPlace(vb + 1) if vb + 1 < vbuckets else None
                return KeyList(rows, vb, vbuckets, next_place, _problem(page))
            keys = page.keys[: KEYS_SHOWN - len(rows)]
            rows += [ListedKey(key, vb, *_field(key)) for key in keys]
            if not page.is_last or len(keys) < len(page.keys):
                return KeyList(rows, vb, vbuckets, ListPlace(vb, keys[-1] if keys else afters[vb]))
        at = wave.stop
        at_once = min(2 * at_once, AT_ONCE_MAX)
    return KeyList(rows, at, vbuckets, ListPlace(at) if at < vbuckets else None)


def _problem(error: BaseException) -> str:
    """Return the reason why a vbucket was not searched, if other vbuckets may be.

    Raises:
        BaseException: the error itself, if it concerns all vbuckets.
    """
    if isinstance(error, TransportError) or (isinstance(error, StatusError) and error.retriable):
        return plain(error)
    raise error


async def _pages_of(
    documents: AsyncDocuments, prefix: bytes, afters: Mapping[int, bytes], count_max: int
) -> list[KeyPage | BaseException]:
    """Search several vbuckets at once; return for each a page of its keys, or the error."""
    pages = (documents.keys_of_vbucket(vb, prefix, after=after, most=count_max) for vb, after in afters.items())
    return await asyncio.gather(*pages, return_exceptions=True)


def _field(key: bytes) -> tuple[str, str]:
    text, form = key_field(key)
    return text, form.value
