"""The place of the Iceberg table, and the property by which the Delta table says that there is one."""

from __future__ import annotations

from typing import Final

PROPERTY: Final = "headwater.iceberg"
"""The property of a Delta table that is published as Iceberg as well; a table keeps it whoever writes to it."""

FOLDER: Final = "_iceberg"
"""The folder of the Iceberg table in that of the Delta table. Delta's VACUUM leaves folders alone that begin with _."""

OWN: Final = f"{FOLDER}/metadata"
"""The folder of all files of the Iceberg table that are not data."""
