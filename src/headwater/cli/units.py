"""Durations and sizes on the command line: 30s, 5m, 64MiB, or a number in the option's own unit."""

from collections.abc import Callable
from typing import Any

import typer

from headwater.errors import OptionError
from headwater.options import SECONDS, Option

__all__ = ["reader_of", "seconds"]


def reader_of(option: Option) -> Callable[[Any], Any]:
    """Return the reader of a duration or a size, which refuses values in the command line's words."""

    def read(text: Any) -> Any:
        try:
            return option.parse(str(text))
        except OptionError as error:
            raise typer.BadParameter(f"{str(text)!r} is not {error.allowed}.") from None

    return read


def seconds(flag: str, about: str, kind: type = float) -> Any:
    """Return the declaration of an option in seconds, 0 or more.

    Args:
        flag: with its dashes. about: its help.
        kind: int for whole seconds.
    """
    option = Option(flag.lstrip("-"), ..., about, kind=kind, unit=SECONDS, least=0)
    return typer.Option(flag, metavar=SECONDS.metavar, help=about, parser=reader_of(option))
