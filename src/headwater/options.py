"""Options, declared once: a field of a dataclass with its default, its meaning and what it may be.

    @dataclass(frozen=True)
    class NodeConfig:
        idle_seconds: int = option(360, "close a connection over which nothing came or went for so long", unit=SECONDS)

`options_of(NodeConfig)` is the table of its options. The command line, a TOML file, the environment, Spark's texts and
the reference pages all read that table, so an option is written in one place. A duration may be written as 30s, 5m, 2h
or 1d, and a size as 64MiB or 1GiB; a number alone counts in the option's own unit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

from headwater.errors import OptionError

__all__ = [
    "BYTES", "MIB", "MILLISECONDS", "PROFILES", "SECONDS", "SERVE", "SIZE", "TIME", "TRUTH", "Option", "Unit", "check",
    "listed", "nearest", "option", "options_of",
]  # fmt: skip

TIME: Final = "TIME"
SIZE: Final = "SIZE"
"""The metavars of durations and sizes."""
PROFILES: Final = "profiles"
"""The table of a file that has a table for each profile."""
SERVE: Final = "serve"
"""No table of a file: a node's options stand at the top of it."""
TRUTH: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)", re.ASCII)
_TIMES: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZES: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


class Unit(NamedTuple):
    """The unit in which an option's value counts.

    Attributes:
        metavar: TIME or SIZE.
        scale: how many milliseconds or bytes each suffix means.
        own: the suffix of the option itself, which a number alone has.
        title: what such a number counts.
        example: values as users write them.
    """

    metavar: str
    scale: Mapping[str, int]
    own: str
    title: str
    example: str

    def read(self, text: str) -> float:
        """Return a text such as "30s" as a number of this unit.

        Raises:
            ValueError: it is neither a number nor a number with a known suffix.
        """
        match = _NUMBER.fullmatch(text.strip())
        if match is None:
            return float(text)
        if match[2] not in self.scale:
            raise ValueError(text)
        return float(match[1]) * self.scale[match[2]] / self.scale[self.own]


SECONDS = Unit(TIME, _TIMES, "s", "seconds", "30s, 5m or 2h")
MILLISECONDS = Unit(TIME, _TIMES, "ms", "milliseconds", "100ms or 2s")
BYTES = Unit(SIZE, _SIZES, "B", "bytes", "512KiB or 64MiB")
MIB = Unit(SIZE, _SIZES, "MiB", "MiB", "64MiB or 1GiB")


@dataclass(frozen=True, slots=True)
class Option:
    """One option: how it is named, read, checked and explained.

    Attributes:
        field: the name of its field, with underscores.
        about: its meaning, as the references print it.
        kind: the type of its value.
        allowed: completes "... is not ...": "a whole number from 1 on". Made of the rest where it is left out.
        read: turns a text into the value and raises ValueError for what it can't take; left out, `kind` says.
        choices: the words that it may be.
        least, most: the bounds of a number, in its unit.
        secret: never shown, not by `repr` either.
        text: its name among Spark's options where that is not the field's in camel case.
        uses: where it applies, if not everywhere: "batch" or "streaming".
        positional: an argument of its command, not an option.
        many: may be given more than once.
        hidden: the command line takes it and does not show it.
        flag: its name on the command line, if that is not the field's with dashes; with a slash a pair of switches.
        env: the environment variable of a command's option; those of a node have HEADWATER_<FIELD>.
    """

    field: str
    default: Any
    about: str
    kind: type = str
    metavar: str = ""
    allowed: str = ""
    read: Callable[[str], Any] | None = None
    choices: tuple[str, ...] = ()
    unit: Unit | None = None
    least: float | None = None
    most: float | None = None
    secret: bool = False
    example: str = ""
    text: str = ""
    uses: str = ""
    positional: bool = False
    many: bool = False
    hidden: bool = False
    flag: str = ""
    env: str = ""

    @property
    def name(self) -> str:
        """Its name on the command line, with dashes."""
        return self.flag.partition("/")[0] or self.field.replace("_", "-")

    @property
    def is_required(self) -> bool:
        """True if it has no default."""
        return self.default is ...

    @property
    def variable(self) -> str:
        """The option's name in the environment."""
        return self.env or f"HEADWATER_{self.field.upper()}"

    @property
    def camel(self) -> str:
        """Its name among Spark's options."""
        head, *words = self.field.split("_")
        return self.text or head + "".join(map(str.capitalize, words))

    def parse(self, text: str, name: str = "") -> Any:
        """Return the value that a text means.

        Args:
            name: as whoever wrote the text calls the option.

        Raises:
            OptionError: the text means none; it says what would have been right.
        """
        try:
            value = self._value(text)
        except (ValueError, KeyError) as error:
            if isinstance(error, OptionError):
                raise
            raise self.refusal(text, name) from None
        if not self.fits(value):
            raise self.refusal(text, name)
        return value

    def _value(self, text: str) -> Any:
        if self.read is not None:
            return self.read(text)
        if self.kind is bool:
            return TRUTH[text.lower()]
        if self.unit is None:
            return text.lower() if self.choices and text.lower() in self.choices else self.kind(text)
        number = self.unit.read(text)
        if self.kind is int and not number.is_integer():
            raise ValueError(text)
        return self.kind(number)

    def fits(self, value: Any) -> bool:
        """Return whether a value is one of the choices and within the bounds."""
        if value is None and self.default is None:
            return True
        if self.choices:
            return value in self.choices
        upper_bound = inf if self.most is None else self.most
        return self.least is None or value is None or self.least <= value <= upper_bound

    def of_file(self, value: Any) -> Any:
        """Return a value as a TOML file has it; durations and sizes may be texts there. Raises as `parse`."""
        if self.unit is not None and isinstance(value, str):
            return self.parse(value)
        if type(value) is not self.kind and not (self.kind is float and type(value) is int):
            raise self.refusal(value)
        return value

    def refusal(self, value: Any, name: str = "") -> OptionError:
        """Return the error about a value that this option can't have."""
        return OptionError(name or self.name, "..." if self.secret else value, self.wanted)

    @property
    def wanted(self) -> str:
        """The values that are right, as a phrase."""
        if self.allowed:
            return self.allowed
        if self.choices:
            return listed(self.choices)
        kinds = {int: "a whole number", float: "a number", bool: "a truth value"}
        kind = kinds.get(self.kind, "a text") if self.unit is None else f"a number of {self.unit.title}"
        if self.least is not None:
            kind += f", {self.least:g} or more" if self.most is None else f", {self.least:g} to {self.most:g}"
        return kind if self.unit is None else f"{kind}; or such as {self.unit.example}"


def option(default: Any, about: str, **more: Any) -> Any:
    """Declare a field that is an option; `more` are attributes of `Option`.

    Args:
        default: ... for one that must be given; a list or a dict is copied.
    """
    arguments: dict[str, Any] = {"metadata": {"option": {"about": about, **more}}, "repr": not more.get("secret")}
    if default is ...:
        return field(**arguments)
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), **arguments)
    return field(default=default, **arguments)


@cache
def options_of(kind: type) -> tuple[Option, ...]:
    """Return the options that a dataclass declares, in the order of their fields."""
    return tuple(
        Option(field.name, _default(field), **{"kind": _kind(str(field.type)), **field.metadata["option"]})
        for field in fields(kind)
        if "option" in field.metadata
    )


def _default(field_: Any) -> Any:
    default = field_.default if field_.default_factory is MISSING else field_.default_factory()
    if default is MISSING:
        return ...
    return str(default) if isinstance(default, Path) else default


def _kind(annotation: str) -> type:
    return {"int": int, "bool": bool, "float": float}.get(annotation.removesuffix(" | None"), str)


def check(settings: Any) -> None:
    """Check the value of each option of a dataclass's instance. Raises OptionError."""
    for each in options_of(settings.__class__):
        if not each.fits(value := getattr(settings, each.field)):
            raise each.refusal(value)


def listed(words: Iterable[str]) -> str:
    """Return words as a phrase: "a or b", "one of a, b, c"."""
    words = tuple(words)
    return " or ".join(words) if len(words) < 3 else f"one of {', '.join(words)}"


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the one of `names` that a misspelt name probably means, in whatever case; None if none is near."""
    from difflib import get_close_matches  # noqa: PLC0415 - for mistakes only

    lowered = {each.lower(): each for each in names}
    return next((lowered[match] for match in get_close_matches(name.lower(), lowered, 1)), None)
