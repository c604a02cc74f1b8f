"""Ages as options take them: `90s`, `30m`, `12h`, `7d`, `2w`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Literal

from headwater.cli.forms import remark
from headwater.errors import OptionError

_NAMES = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)", re.ASCII)
FORM = "an age such as 12h, 7d or 2w (s, m, h, d, w)"
AGE_MAX = timedelta(days=100 * 365)
"""Nothing here is as old; dates before the year 1 there are none of."""


def read_age(option: str, text: str, before: Literal["h", "d"], at_least: timedelta = timedelta(0)) -> timedelta:
    """Return an age.

    Args:
        option: its name, without dashes.
        before: the unit that a number alone had until there were units; it is taken still, with a remark.
        at_least: a shorter one is refused.

    Raises:
        OptionError: it is no age, or too short, or over a hundred years.
    """
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise OptionError(option, text, FORM)
    number, unit = found.groups()
    if not unit:
        unit = before
        remark(f"--{option} {text} is taken for {number}{before}: write the unit as well")
    try:
        age = timedelta(**{_NAMES[unit]: float(number)})
    except OverflowError:
        age = timedelta.max
    if age > AGE_MAX:
        raise OptionError(option, text, f"{FORM}, a hundred years at most")
    if age < at_least:
        raise OptionError(option, text, f"{FORM}, {at_least.total_seconds() / 3600:g}h or more")
    return age
