"""The lines of `tail` in a form of the user's own: a template of fields, or rows of CSV; and which keys are shown.

    '{key} {value}'                     fields by name; \t, \n and \\\\ are what they are in Python, a line end is added
    '{time} {collection}/{key}\\t{value}'
    csv                                 a header, then the columns of `headwater export` behind the event's name

Fields are those of FIELDS; `time` is that of the CAS, in UTC.
"""

from __future__ import annotations

import csv
import datetime
import io
import re
import string
import sys
from collections.abc import Callable
from fnmatch import translate
from typing import TYPE_CHECKING, Any

from headwater.cli.layout import COLUMNS, PLACE, ExportedDocument, cells
from headwater.client.lines import printable, text
from headwater.errors import OptionError
from headwater.wire.event_columns import SHOWN

if TYPE_CHECKING:
    from headwater.client import Deletion, Expiration, Mutation

FIELDS = (
    *("event", "time", *PLACE, "scope", "collection", "key", "value"),
    *(name for name in SHOWN if name not in PLACE),
)
_ESCAPES = {"t": "\t", "n": "\n", "\\": "\\"}


def wanted_keys(globs: list[str] | None) -> Callable[[bytes], bool]:
    """Return the function that tells whether a key matches one of the patterns: `order:*`, `?`, `[0-9]`, as
    in a shell.
    """
    if not globs:
        return lambda key: True
    patterns = [re.compile(translate(glob)) for glob in globs]
    return lambda key: any(pattern.match(text(key)) for pattern in patterns)


def template(pattern: str) -> Callable[[str, Mutation | Deletion | Expiration], str]:
    r"""Return the function that makes a line of a change.

    Raises:
        OptionError: the pattern has no field, or an unknown one.
    """
    try:
        parts = list(string.Formatter().parse(re.sub(r"\\([tn\\])", lambda match: _ESCAPES[match[1]], pattern)))
    except ValueError as error:
        raise OptionError("format", pattern, f"a template such as '{{key}} {{value}}' ({error})") from None
    names = [name for _, name, _, _ in parts if name is not None]
    for name, form in ((name, form or conversion) for _, name, form, conversion in parts if name is not None):
        if name not in FIELDS or form:
            raise OptionError("format", pattern, f"made of the fields {', '.join(FIELDS)}, as in '{{key}} {{value}}'")
    if not names:
        raise OptionError("format", pattern, "text, json, csv, or a template such as '{key} {value}'")
    printable_ = printable if sys.stdout.isatty() else str

    def line(kind: str, change: Mutation | Deletion | Expiration) -> str:
        fields = _fields(kind, change)
        texts = (literal + (printable_(fields[name]) if name is not None else "") for literal, name, _, _ in parts)
        return "".join(texts)

    return line


def _fields(kind: str, change: Any) -> dict[str, str]:
    moment = datetime.datetime.fromtimestamp(change.cas / 1e9, datetime.UTC)
    return {
        "event": kind,
        "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        **{name: str(getattr(change, name, 0)) for name in FIELDS if name not in ("event", "time", "key", "value")},
        "key": text(change.key),
        "value": text(change.value),
    }


CSV_HEADER = ",".join(("event", *COLUMNS))


def csv_line(kind: str, change: Any) -> str:
    """Return one change as a row, without its line end."""
    fields: list[Any] = [getattr(change, name, 0) for name in ExportedDocument._fields]
    document = ExportedDocument._make(fields)
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([kind, *cells(document, "utf-8")])
    return out.getvalue()
