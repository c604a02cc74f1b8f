"""Libraries that are missing and that an extra would have brought: each is told with how to install it."""

import re
from collections import Counter
from importlib.metadata import PackageNotFoundError, requires

__all__ = ["told"]

_REQUIREMENT = re.compile(r"([\w.-]+)([^;\[]*);.*extra == ['\"]([\w-]+)['\"]")
_NAMES = {"delta": "delta-spark"}
"""Modules that are called otherwise than their package."""
_TOOLS = frozenset({"dev", "all"})
"""Extras that gather what others bring."""


def told(error: ModuleNotFoundError) -> str | None:
    """Say what to install for a module that one of our extras brings; None when none does: that is a bug."""
    name = (error.name or "").partition(".")[0]
    package = _NAMES.get(name, name)
    asked = _extras()
    found = [each for each in asked if each[0].casefold() == package.casefold()]
    if not found:
        return None
    sizes = Counter(extra for _, _, extra in asked)  # what an extra takes over from another stands in both
    _, versions, extra = min(found, key=lambda each: sizes[each[2]])
    return f"{name} is missing: pip install '{package}{versions}', or headwater with the extra `{extra}`"


def _extras() -> list[tuple[str, str, str]]:
    """Package, versions and extra of each requirement that an extra adds."""
    try:
        asked = requires("headwater") or []
    except PackageNotFoundError:  # a tree on PYTHONPATH
        return []
    parts = [match.groups() for each in asked if (match := _REQUIREMENT.match(each))]
    return [(name, versions.strip(), extra) for name, versions, extra in parts if extra not in _TOOLS]
