"""The places of a table's files in its folder: Delta's layout, or Iceberg's.

                    Delta's                      Iceberg's
    data            part-*.parquet               data/part-*.parquet
    Iceberg's       _iceberg/metadata, or none   metadata/
    dead rows       deletion_vector_*.bin        _vectors/deletion_vector_*.bin
    log, indexes    _delta_log/, _index/         _delta_log/, _index/

In a table of Iceberg's layout all files that Iceberg's metadata does not name are in folders that begin with _, since
Iceberg's removal of orphan files leaves such folders alone. The log has a feature that other writers of Delta do not
know: they refuse to write there (docs/decisions/0156).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

FEATURE: Final = "headwaterIceberg"
"""The feature, in the protocol of a table's log, of Iceberg's layout. It binds writers; readers need not know it."""

VECTORS: Final = "_vectors"
DATA, METADATA = "data", "metadata"


class Formats(StrEnum):
    """The formats in which a table can be read, as the option has them."""

    DELTA = "delta"
    ICEBERG = "iceberg"
    BOTH = "delta,iceberg"


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The folders of a table, each empty for the table's own.

    Attributes:
        data: of data files.
        vectors: of Delta's files of deletion vectors.
        iceberg: of the Iceberg table, if there is one.
    """

    data: str
    vectors: str
    iceberg: str

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders that have data files or vectors."""
        return tuple(dict.fromkeys((self.data, self.vectors)))

    def label(self, name: str) -> str:
        """Return the beginning of the paths of data files whose names begin with `name`."""
        return within(self.data, name)


def within(folder: str, name: str) -> str:
    """Return the path of a file in a folder of the table, which may be the table's own (empty)."""
    return f"{folder}/{name}" if folder else name


OF_DELTA: Final = TableLayout("", "", "_iceberg")
OF_ICEBERG: Final = TableLayout(DATA, VECTORS, "")
