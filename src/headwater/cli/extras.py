"""Missing libraries that an extra would have installed: each is named with its install command."""

import re
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires

__all__ = ["advice", "lacking"]

_REQUIREMENT = re.compile(r"([\w.-]+)([^;\[]*);.*extra == ['\"]([\w-]+)['\"]")
_NAMES = {"confluent_kafka": "confluent-kafka", "delta": "delta-spark", "opensearchpy": "opensearch-py"}
"""The package of each module that has another name than its package."""
_TOOLS = frozenset({"dev", "all"})
"""Extras that only gather the packages of other extras."""


def advice(error: ModuleNotFoundError) -> str | None:
    """Return the advice to install the extra with a module; None if no extra has it: that is a bug."""
    return lacking([(error.name or "").partition(".")[0]])


def lacking(modules: Sequence[str]) -> str | None:
    """Return the advice to install the extra with some modules; None if no extra of ours has one of them."""
    requirements = _extras()
    sizes = Counter(extra for _, _, extra in requirements)  # what an extra takes over from another stands in both
    packages: list[tuple[str, str, str]] = []
    for name in modules:
        package = _NAMES.get(name, name).casefold()
        matches = [requirement for requirement in requirements if requirement[0].casefold() == package]
        if not matches:
            return None
        packages.append(min(matches, key=lambda each: sizes[each[2]]))
    install = " ".join(f"'{package}{versions}'" for package, versions, _ in packages)
    verb = "is" if len(modules) == 1 else "are"
    return f"{', '.join(modules)} {verb} missing: pip install {install}, or headwater with the extra `{packages[0][2]}`"


def _extras() -> list[tuple[str, str, str]]:
    """Return package, versions and extra of each requirement of an extra."""
    try:
        requirements = requires("headwater") or []
    except PackageNotFoundError:  # a tree on PYTHONPATH
        return []
    parts = [match.groups() for requirement in requirements if (match := _REQUIREMENT.match(requirement))]
    return [(name, versions.strip(), extra) for name, versions, extra in parts if extra not in _TOOLS]
