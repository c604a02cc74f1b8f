"""A read's options, checked and typed: what the reader and the planner go by.

Spark hands options over as strings, in a mapping that ignores case, together with a few of its own (`SPARKS_OWN`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from headwater.errors import OptionError
from headwater.spark.offsets import Offset
from headwater.spark.options import OPTIONS, Option

SPARKS_OWN = frozenset({"path", "paths", "checkpointlocation"})
"""What Spark itself puts among a source's options; `path` is the argument of `load(...)`, taken for `url`."""

_BY_NAME = {option.name.lower(): option for option in OPTIONS}


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one read, checked and typed; pickled to every task."""

    url: str
    user: str | None
    password: str | None
    vbuckets: tuple[int, ...] | None
    starting_offsets: Offset
    ending_seqnos: Mapping[int, int] | None
    partitions: int | None
    max_changes: int | None
    key_format: str
    value_format: str
    rollback_policy: str
    poll_interval_seconds: float
    retry_seconds: float
    window_bytes: int
    xattrs: bool

    def __repr__(self) -> str:
        return f"Settings({self.url})"


def parse(given: Mapping[str, str], *, streaming: bool | None = None) -> Settings:
    """Check what the user wrote and return it typed.

    Args:
        given: option names (any case) and texts, as Spark hands them over.
        streaming: whether this is for `readStream`; some options fit only one of the two. None: not known yet.

    Raises:
        OptionError: an unknown option, a value it can't have, or one that does not fit this kind of read.
    """
    values = {option.name: option.default for option in OPTIONS}
    for option, text in _recognised(given):
        if streaming is not None and not (option.streaming if streaming else option.batch):
            kind, other = ("streaming", "batch") if streaming else ("batch", "streaming")
            raise OptionError(option.name, text, f"for a {kind} read; only a {other} read takes this option")
        values[option.name] = option.read(text)
    if values["url"] is None:
        raise OptionError("url", "", _BY_NAME["url"].allowed + "; give it as an option or as load(url)")
    if streaming is False and values["startingOffsets"].latest:
        raise OptionError("startingOffsets", "latest", "possible for a batch read, which would be empty")
    return Settings(*values.values())


def _recognised(given: Mapping[str, str]) -> Iterator[tuple[Option, str]]:
    lowered = {name.lower(): text for name, text in given.items()}
    if "path" in lowered:
        lowered.setdefault("url", lowered["path"])
    for name, text in lowered.items():
        if name in _BY_NAME:
            yield _BY_NAME[name], text
        elif name not in SPARKS_OWN:
            near = get_close_matches(name, _BY_NAME, n=1)
            hint = f" (did you mean {_BY_NAME[near[0]].name}?)" if near else ""
            known = ", ".join(option.name for option in OPTIONS)
            raise OptionError(name, text, f"known to the dcp source{hint}; its options are {known}")
