"""Changes to the flights while the mirror runs, and the documents expected in the end.

A round is planned first and performed then, so that a round cut short by the crash can be performed again: storing the
same value twice, or deleting a missing key, does not change the result. `expected` changes only when a whole round has
been acknowledged; it is the demo's own memory, independent of node and table.
"""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from headwater.cli.failures import CommandError
from headwater.errors import KeyNotFound, StatusError

if TYPE_CHECKING:
    from headwater.client import Client, aio

EXPIRY_SECONDS = 1
TOUCHES_AT_A_TIME = 500


@dataclass(frozen=True, slots=True)
class Round:
    """One round: documents to store (changed and reborn ones), keys to delete, keys to let expire."""

    stored: dict[bytes, bytes]
    deleted: list[bytes]
    expiring: list[bytes]

    @property
    def changes(self) -> int:
        """The number of changes that the node will record for the round; an expiry counts as two: the new time, then
        the expiration.
        """
        return len(self.stored) + len(self.deleted) + 2 * len(self.expiring)

    def keys(self) -> set[bytes]:
        """Return all keys of the round."""
        return {*self.stored, *self.deleted, *self.expiring}


class Traffic:
    """Plans rounds, performs them, remembers the remaining documents."""

    def __init__(self, documents: dict[bytes, bytes], random: Random) -> None:
        self.expected: Final = dict(documents)
        self._deleted_documents: dict[bytes, bytes] = {}
        self._random = random
        self._rounds = 0

    def plan(self, share: float) -> Round:
        """Pick the next round: `share` of the documents are changed, a third as many deleted, a sixth left to expire.

        Half of the keys that earlier rounds removed come back: mirrors err at keys that were deleted and stored again.
        """
        self._rounds += 1
        changed = max(1, int(len(self.expected) * share))
        picked = self._random.sample(sorted(self.expected), min(len(self.expected), changed + changed // 2))
        picked_again = picked[changed:]
        deleted, expiring = picked_again[: changed // 3], picked_again[changed // 3 :]
        reborn = self._random.sample(sorted(self._deleted_documents), len(self._deleted_documents) // 2)
        new_values = {key: self._changed_document(self.expected[key]) for key in picked[:changed]}
        new_values |= {key: self._changed_document(self._deleted_documents[key]) for key in reborn}
        return Round(new_values, deleted, expiring)

    def perform(self, client: "Client", url: str, plan: Round) -> None:
        """Send a round's changes; when this returns, all of them are durable.

        Raises: TransportError when the node dies meanwhile, CommandError when it refuses something.
        """
        _none_refused(client.set_many(plan.stored), allowed=())
        _none_refused(client.delete_many(plan.deleted), allowed=(KeyNotFound,))
        asyncio.run(_let_expire(url, plan.expiring))

    def acknowledged(self, plan: Round) -> None:
        """Remember that a round is done."""
        for key in plan.keys() & self.expected.keys():
            self._deleted_documents[key] = self.expected.pop(key)
        for key, value in plan.stored.items():
            self._deleted_documents.pop(key, None)
            self.expected[key] = value

    def _changed_document(self, document: bytes) -> bytes:
        """Return a later report of the same flight, with another arrival time."""
        flight = json.loads(document)
        flight["arr_delay"] = self._random.randint(-60, 300)
        flight["report"] = self._rounds
        return json.dumps(flight, separators=(",", ":")).encode()


def _none_refused(errors: dict[bytes, StatusError], allowed: tuple[type[StatusError], ...]) -> None:
    refusals = {key: error for key, error in errors.items() if not isinstance(error, allowed)}
    if refusals:
        key, error = next(iter(refusals.items()))
        raise CommandError(f"the node refused {len(refusals)} changes, the first of {key.decode()}: {error}")


async def _let_expire(url: str, keys: Iterable[bytes]) -> None:
    """Give documents a second to live; many requests at a time, so that they share group commits."""
    from headwater.client import aio

    remaining = list(keys)
    async with await aio.connect(url) as client:
        while remaining:
            part, remaining = remaining[:TOUCHES_AT_A_TIME], remaining[TOUCHES_AT_A_TIME:]
            await asyncio.gather(*(_touch(client, key) for key in part))


async def _touch(client: "aio.AsyncClient", key: bytes) -> None:
    try:
        await client.touch(key, EXPIRY_SECONDS)
    except KeyNotFound:
        return  # it expired before the crash, and this is the second performance
