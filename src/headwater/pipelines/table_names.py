"""Names of tables in a catalog of Spark's: `catalog.schema.name`, whose parts may stand in backticks."""

from __future__ import annotations

import re

from headwater.errors import OptionError

__all__ = ["ALLOWED", "IN_MEMORY", "PART", "SESSION_CATALOG", "parse_name", "quoted"]

ALLOWED = "a name such as catalog.schema.name"
IN_MEMORY, SESSION_CATALOG = "in-memory", "spark_catalog"
PART = re.compile(r"`((?:[^`]|``)+)`|([^`.\s]+)")


def parse_name(text: str) -> tuple[str, ...]:
    """Split a name at its dots; a part between backticks may have dots itself.

    Raises:
        OptionError: it is no name.
    """
    parts, at = [], 0
    while (match := PART.match(text, at)) is not None:
        parts.append(match[2] or match[1].replace("``", "`"))
        at = match.end()
        if at == len(text):
            return tuple(parts)
        if text[at] != ".":
            break
        at += 1
    raise OptionError("table", text, f"{ALLOWED}; a part with a dot stands in backticks")


def quoted(parts: tuple[str, ...]) -> str:
    """Return a name in SQL's form."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)
