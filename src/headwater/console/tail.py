"""The live tail: the changes of a bucket as they become durable, filtered, no more at a time than a page can show.

Changes that are left out are counted and reported. Only the rows of one delivery are kept, with the beginnings of their
values; if the page reads slowly, so does the drain, and its window makes the producers wait.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute

from headwater.client.aio import AsyncClient, Connecting
from headwater.client.changes import ChangeBatch
from headwater.client.lines import printable, text
from headwater.console.desk import clock
from headwater.console.editing import key_field
from headwater.errors import OptionError, RollbackRequired, TransportError
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import vbucket_set

if TYPE_CHECKING:
    from headwater.client.collections import Collections
    from headwater.client.feeds import AsyncBatches
    from headwater.client.options import Start

pc: Any = pyarrow.compute
"""The module without its type stubs, which have no patterns of bytes."""

ROWS_MAX = 100
"""Rows of one delivery; more would only push each other out of sight."""
DELIVERY_SECONDS = 0.25
WAIT_SECONDS = 0.5
PATIENCE_SECONDS = 4.0
WINDOW_BYTES = 1 << 20
KEY_SHOWN_BYTES = 120
VALUE_SHOWN_BYTES = 160
KINDS = {
    "mutation": int(Opcode.DCP_MUTATION),
    "deletion": int(Opcode.DCP_DELETION),
    "expiration": int(Opcode.DCP_EXPIRATION),
}
_NAMES = {number: name for name, number in KINDS.items()}
COLUMNS = ("opcode", "vbucket", "seqno", "cas", "key", "value")
PATH = ("scope", "collection")


AWAY = "A node does not answer; trying again."
ON = "Connected again, and behind the last change that was shown: none is missing."
AGAIN = "Connected again; what changed meanwhile is not shown."


@dataclass(frozen=True, slots=True)
class TailFilter:
    """The changes to show.

    Attributes:
        key: bytes that the key contains; empty for any.
        kind: mutation, deletion, expiration, or empty for all.
        vbuckets: None for all.
        keys_only: True to leave values out, which the nodes then do not even send.
        collection: `scope.collection`, "all", or empty for the default one.
    """

    key: bytes = b""
    kind: str = ""
    vbuckets: tuple[int, ...] | None = None
    keys_only: bool = False
    collection: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, str], vbuckets: int) -> TailFilter:
        """Read the filter from the fields of a form.

        Args:
            vbuckets: the bucket's number of vbuckets.

        Raises:
            OptionError: an unknown kind or vbucket.
        """
        kind, vbucket_text = fields.get("kind", ""), fields.get("vbuckets", "").strip()
        if kind and kind not in KINDS:
            raise OptionError("kind", kind, f"one of {', '.join(KINDS)}")
        numbers = vbucket_set(vbucket_text, vbuckets) if vbucket_text else None
        path_text = fields.get("collection", "").strip()
        return cls(fields.get("key", "").encode(), kind, numbers, bool(fields.get("keys_only", "")), path_text)

    @property
    def collections(self) -> Collections:
        """Return the choice of collections for the client."""
        return "all" if self.collection == "all" else [self.collection] if self.collection else None

    def apply(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that match the filter."""
        mask = None
        if self.kind:
            mask = pc.equal(records.column("opcode"), KINDS[self.kind])
        if self.key:
            matching = pc.match_substring(records.column("key"), pattern=self.key)
            mask = matching if mask is None else pc.and_(mask, matching)
        return records if mask is None else records.filter(mask)


@dataclass(slots=True)
class Delivery:
    """The changes since the last delivery.

    Attributes:
        rows: at most ROWS_MAX, oldest first.
        seen: number of changes that came. matched: number of those that passed the filter.
        notice: a sentence about the tail itself; empty if all is well.
    """

    rows: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=ROWS_MAX))
    seen: int = 0
    matched: int = 0
    notice: str = ""

    def add(self, batch: ChangeBatch, filter_: TailFilter) -> None:
        """Add the matching rows of a batch; if they are too many, keep the newest."""
        matching = filter_.apply(batch.records)
        self.seen += batch.records.num_rows
        self.matched += matching.num_rows
        last = matching.slice(max(0, matching.num_rows - ROWS_MAX))
        columns: list[list[Any]] = [last.column(name).to_pylist() for name in COLUMNS]
        columns += [last.column(name).to_pylist() if filter_.collection else [""] * len(last) for name in PATH]
        self.rows.extend(_row(values, filter_.keys_only) for values in zip(*columns, strict=True))

    def to_json(self) -> dict[str, Any]:
        """Return the delivery for a page; `left` counts matching changes that are not among the rows."""
        facts = {"rows": list(self.rows), "seen": self.seen, "matched": self.matched, "notice": self.notice}
        return facts | {"left": self.matched - len(self.rows), "at": time.time()}


def _row(values: Sequence[Any], keys_only: bool) -> dict[str, Any]:
    opcode, vbucket, seqno, cas, key, value, *path = values
    value_text = "" if keys_only or not value else _shortened(value, VALUE_SHOWN_BYTES)
    kind = _NAMES.get(opcode, str(opcode))
    # As text: JavaScript's numbers keep 53 bits.
    facts = {
        "vbucket": vbucket,
        "seqno": str(seqno),
        "kind": kind,
        "key": _shortened(key, KEY_SHOWN_BYTES),
        "value": value_text,
    }
    field, form = key_field(key)
    path_text = ".".join(filter(None, path))
    link = {"key": field, "form": form.value, "collection": path_text}
    return facts | {"time": clock(cas / 1e9), "collection": path_text, "document": link}


def _shortened(data: bytes, bytes_max: int) -> str:
    hidden_bytes = len(data) - bytes_max
    return printable(text(data[:bytes_max])) + (f"\u2026 ({hidden_bytes:,} bytes more)" if hidden_bytes > 0 else "")


async def follow(
    client: AsyncClient, filter_: TailFilter, clock: Callable[[], float] = time.monotonic
) -> AsyncGenerator[Delivery, None]:
    """Yield deliveries from now on, also empty ones while nothing changes; continue after failures of nodes.

    After a failover that lost changes a notice names the vbucket, and the tail continues with later changes.

    Raises:
        StatusError: the user may not read, or the node refuses for another reason.
    """
    start: Start = "now"
    notice = ""
    while True:
        feed: AsyncBatches | None = None
        delivery, delivery_at = Delivery(notice=notice), clock()
        try:
            async with _open(client, filter_, start) as feed:
                notice = ""
                async for batch in feed:
                    delivery.add(batch, filter_)
                    if clock() >= delivery_at:
                        yield delivery
                        delivery, delivery_at = Delivery(), clock() + DELIVERY_SECONDS
        except RollbackRequired as error:
            delivery.notice, notice, start = _went_back(error), "", "now"
            yield delivery
        except TransportError:
            start = start if feed is None else feed.positions
            notice = AGAIN if start == "now" else ON
            delivery.notice = AWAY
            yield delivery  # what came and was not due yet: the feed's positions are behind it
            await asyncio.sleep(WAIT_SECONDS)


def _open(client: AsyncClient, filter_: TailFilter, start: Start) -> Connecting[AsyncBatches]:
    return client.batches(
        start,
        vbuckets=filter_.vbuckets,
        collections=filter_.collections,
        window_bytes=WINDOW_BYTES,
        no_value=filter_.keys_only,
        patience_seconds=PATIENCE_SECONDS,
        max_wait_seconds=WAIT_SECONDS,
    )


def _went_back(error: RollbackRequired) -> str:
    loss = f"Vbucket {error.vbucket} went back to seqno {error.common}: what was shown of it above that was lost in a"
    return f"{loss} failover. Changes of all vbuckets between then and now are not shown."
