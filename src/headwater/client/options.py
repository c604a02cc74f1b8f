"""Options of a drain, which `changes` and `batches` take, with their bounds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, get_args

from headwater.client.collections import Collections, read_names
from headwater.errors import OptionError
from headwater.options import nearest
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.flow import WINDOW_BYTES_MAX
from headwater.protocol.dcp.opening import NAME_BYTES_MAX
from headwater.protocol.dcp.persistence import MinPersisted, read_min_persisted
from headwater.protocol.dcp.position import Position

Start: TypeAlias = Mapping[int, Position] | Literal["now"] | None
"""The beginning of a drain: saved positions by vbucket, the present, or None for the whole history."""

Until: TypeAlias = Mapping[int, int] | Literal["now"] | None
"""The end of a drain: a seqno by vbucket, the present, or None for never."""

OnDataLoss: TypeAlias = Literal["raise", "read_again"]
"""The answer to deletions that were purged before they were read."""

Function = TypeVar("Function", bound=Callable[..., object])

MEBI = 1 << 20
BATCH_BYTES_MAX = 256 * MEBI
NOOP_SECONDS = (0.1, 10_800.0)


class BatchesOptions(TypedDict, total=False):
    """The keywords of `batches`; `Client.changes` says what each is for."""

    name: str
    window_bytes: int
    noop_interval_seconds: float
    batch_bytes: int
    xattrs: bool
    deleted_xattrs: bool
    no_value: bool
    patience_seconds: float | None
    max_wait_seconds: float | None
    answer_seconds: float
    map_poll_seconds: float | None
    collections: Collections
    scope: str | None
    min_persisted: MinPersisted | None
    on_data_loss: OnDataLoss
    history: bool
    before: bool


class ChangesOptions(BatchesOptions, total=False):
    """The keywords of `changes`."""

    markers: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOptions:
    """The options of a drain with their defaults; `Client.changes` says what each is for.

    Raises:
        OptionError: a value out of its bounds.
    """

    name: str = ""
    window_bytes: int = 10 * MEBI
    noop_interval_seconds: float = 20.0
    batch_bytes: int = MEBI
    xattrs: bool = False
    deleted_xattrs: bool = False
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
    history: bool = False
    before: bool = False

    def __post_init__(self) -> None:
        if len(self.name.encode()) > NAME_BYTES_MAX:
            raise OptionError("name", self.name, f"at most {NAME_BYTES_MAX} bytes")
        _bounded("window_bytes", self.window_bytes, 0, WINDOW_BYTES_MAX)
        _bounded("noop_interval_seconds", self.noop_interval_seconds, *NOOP_SECONDS)
        _bounded("batch_bytes", self.batch_bytes, 1, BATCH_BYTES_MAX)
        for name in ("patience_seconds", "max_wait_seconds", "answer_seconds", "map_poll_seconds"):
            if (seconds := getattr(self, name)) is not None:
                _bounded(name, seconds, 0, float("inf"))
        if self.deleted_xattrs and not self.xattrs:
            raise OptionError("deleted_xattrs", True, "given with xattrs=True, of which they are a part")
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
    def every_version(self) -> bool:
        """True if every version is wanted: only then it is sure what each of them replaced."""
        return self.history or self.before

    @property
    def chooses(self) -> bool:
        """True if anything but the default collection alone is wanted."""
        return self.collections is not None or self.scope is not None


def drain_options(names: type, options: Mapping[str, Any]) -> DrainOptions:
    """Return the options of a drain that takes the keywords of a TypedDict. Raises OptionError."""
    refuse_unknown(options, ("start", "vbuckets", "until", *names.__annotations__))
    return DrainOptions(**options)


def refuse_unknown(options: Mapping[str, object], names: Iterable[str]) -> None:
    """Raise OptionError for the first option that is not among the names; its message suggests the nearest name."""
    choices = list(names)
    for name in [name for name in options if name not in choices]:
        near = nearest(name, choices)
        hint = f'did you mean "{near}"?' if near else f"there are {', '.join(choices)}"
        raise OptionError(name, options[name], f"taken under this name; {hint}")


def shows(names: type, table: Callable[..., object], **defaults: object) -> Callable[[Function], Function]:
    """Let `help` and completion list the keywords of a function that takes them as `**options: Unpack[names]`.

    Type checkers read the TypedDict. Python knows no more of it than `**options`, so each keyword is written into the
    function's signature.

    Args:
        table: a function or class with a parameter for each keyword, and its default.
        defaults: the function's own defaults, by keyword, where they differ.
    """

    def show(function: Function) -> Function:
        signature, declared_parameters = inspect.signature(function), inspect.signature(table).parameters
        first = [
            parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD
        ]
        keywords = [
            declared_parameters[name].replace(default=defaults.get(name, declared_parameters[name].default))
            for name in names.__annotations__
        ]
        vars(function)["__signature__"] = signature.replace(parameters=[*first, *keywords])
        return function

    return show


def _bounded(name: str, number: float, lowest: float, highest: float) -> None:
    if not lowest <= number <= highest:
        raise OptionError(name, number, f"a number from {lowest:g} to {highest:g}")
