"""The forms in which a table keeps documents: bytes alone, JSON unfolded into columns, JSON as VARIANT.

A table keeps its form for good, and its columns show which one it has. A module declares a form; the form is listed
here, and the mirror has an option for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headwater.lake.shape import PLAIN, TableForm
from headwater.lake.unfold import UNFOLDED
from headwater.lake.variant import AS_VARIANT

FORMS: Final[tuple[TableForm, ...]] = (UNFOLDED, AS_VARIANT)
"""The forms that a mirror is asked for; a table without one is PLAIN."""


def form_of(columns: Sequence[Mapping[str, Any]]) -> TableForm:
    """Return the form of a table with these columns."""
    return next((form for form in FORMS if form.is_of(columns)), PLAIN)
