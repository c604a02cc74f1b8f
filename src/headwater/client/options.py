"""How to drain: the options of `changes` and `batches`, with their bounds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from headwater.client.collections import Collections, read_names
from headwater.errors import OptionError
from headwater.options import nearest
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.flow import WINDOW_BYTES_MAX
from headwater.protocol.dcp.opening import NAME_BYTES_MAX
from headwater.protocol.dcp.persistence import MinPersisted, read_min_persisted
from headwater.protocol.dcp.position import Position

Start: TypeAlias = Mapping[int, Position] | Literal["now"] | None
"""Where to begin: saved positions by vbucket, the present, or None for the whole history."""

Until: TypeAlias = Mapping[int, int] | Literal["now"] | None
"""Where to end: a seqno by vbucket, the present, or None for never."""

OnDataLoss: TypeAlias = Literal["raise", "read_again"]
"""The answer to deletions that were purged before they were read."""

MEBI = 1 << 20
BATCH_BYTES_MAX = 256 * MEBI
NOOP_SECONDS = (0.1, 10_800.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    """How to drain.

    Args:
        name: of the DCP connections, at most 200 bytes; a second connection of the same name ends the first. Empty
            for a name of our own.
        window_bytes: how much a node may send before it hears that it was processed; 0 for no limit.
        noop_interval_seconds: the node says something at least this often; twice as long a silence is a dead node.
        batch_bytes: about the size of a batch; 1 to 4 MiB stay in the processor's cache.
        xattrs: deliver extended attributes (datatype bit 4) in front of the value.
        no_value: deliver keys and metadata only.
        patience_seconds: how long a vbucket may fail without coming on before its last error is raised, and how long
            a drain with an end may stand still; None for ever.
        max_wait_seconds: when nothing came for so long, `changes` raises NothingCame, `batches` hands out an empty
            batch; None waits for ever.
        answer_seconds: how long a node may take to answer a stream request.
        map_poll_seconds: how often one of several nodes is asked whether the cluster map has changed; None never asks,
            then only what ends a stream or a connection leads to a new map.
        markers: report snapshot markers as events.
        collections: "all" for the whole bucket, or names "scope.collection"; None, without a `scope`, is the default
            collection alone.
        scope: all collections of this scope, future ones too.
        min_persisted: hand a change out only when so many copies of its vbucket have it on disk, the active one
            included: a number, "majority" or "all"; None as soon as it comes.
        on_data_loss: when deletions were purged before we came to them: "raise" DataLoss, or "read_again" the vbuckets
            from the beginning, behind an event that says so (`DeletionsPurged`).

    Raises:
        OptionError: a value out of its bounds.
    """

    name: str = ""
    window_bytes: int = 10 * MEBI
    noop_interval_seconds: float = 20.0
    batch_bytes: int = MEBI
    xattrs: bool = False
    no_value: bool = False
    patience_seconds: float | None = 60.0
    max_wait_seconds: float | None = None
    answer_seconds: float = 30.0
    map_poll_seconds: float | None = 5.0
    markers: bool = False
    collections: Collections = None
    scope: str | None = None
    min_persisted: MinPersisted | None = None
    on_data_loss: OnDataLoss = "raise"

    def __post_init__(self) -> None:
        if len(self.name.encode()) > NAME_BYTES_MAX:
            raise OptionError("name", self.name, f"at most {NAME_BYTES_MAX} bytes")
        _bounded("window_bytes", self.window_bytes, 0, WINDOW_BYTES_MAX)
        _bounded("noop_interval_seconds", self.noop_interval_seconds, *NOOP_SECONDS)
        _bounded("batch_bytes", self.batch_bytes, 1, BATCH_BYTES_MAX)
        for name in ("patience_seconds", "max_wait_seconds", "answer_seconds", "map_poll_seconds"):
            if (seconds := getattr(self, name)) is not None:
                _bounded(name, seconds, 0, float("inf"))
        if self.scope is not None and self.collections is not None:
            raise OptionError("scope", self.scope, "given without collections: it is one or the other")
        if self.collections is not None and not isinstance(self.collections, Coverage):
            read_names(self.collections)
        if self.min_persisted is not None:
            read_min_persisted(self.min_persisted)
            if not self.window_bytes:
                raise OptionError("window_bytes", 0, "above 0 with min_persisted: it bounds what waits")
        if self.on_data_loss not in get_args(OnDataLoss):
            raise OptionError("on_data_loss", self.on_data_loss, f"one of {', '.join(get_args(OnDataLoss))}")
        if self.on_data_loss != "raise" and self.min_persisted is not None:
            raise OptionError("on_data_loss", self.on_data_loss, '"raise" with min_persisted: begin again yourself')

    @property
    def chooses(self) -> bool:
        """Whether anything but the default collection alone is wanted."""
        return self.collections is not None or self.scope is not None


def refuse_unknown(
    unknown: Mapping[str, object], known: Callable[..., object], *more: str, without: tuple[str, ...] = ()
) -> None:
    """Raise OptionError for the first name that is no keyword of `known` nor among `more`; says the nearest that is."""
    takes = [each.name for each in inspect.signature(known).parameters.values() if each.kind is not each.VAR_KEYWORD]
    names = [name for name in (*more, *takes) if name not in without]
    for name, value in unknown.items():
        near = nearest(name, names)
        hint = f'did you mean "{near}"?' if near else f"there are {', '.join(names)}"
        raise OptionError(name, value, f"taken under this name; {hint}")


def _bounded(name: str, number: float, lowest: float, highest: float) -> None:
    if not lowest <= number <= highest:
        raise OptionError(name, number, f"a number from {lowest:g} to {highest:g}")
