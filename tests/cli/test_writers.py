"""Any documents as rows of any form."""

import io
import json
import math
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from headwater.cli.writers import ExportForm, write

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=5,
)


@given(documents=st.lists(st.dictionaries(st.sampled_from(["a", "b", "id "]), JSON), max_size=6))
def test_any_document_is_a_row_of_any_form(documents: list[dict[str, Any]]) -> None:
    """Nothing fails, the number of rows is that of the documents, and no number in a column of a type was changed."""
    texts = [json.dumps(document) for document in documents]
    if any(not text.isascii() or "\\ud" in text for text in texts):
        return  # half a character has no place but in JSON
    batch = pa.RecordBatch.from_pydict(
        {"key": [b"%d" % at for at in range(len(texts))], "value": [text.encode() for text in texts]},
        schema=pa.schema([("key", pa.binary()), ("value", pa.binary())]),
    )
    for file_format in ("jsonl", "csv", "parquet"):
        out = io.BytesIO()
        done = list(write(out, lambda: iter([batch]), ExportForm(file_format, key_field="id")))
        assert done[-1] == len(documents)
        out.seek(0)
        if file_format == "jsonl":
            assert [json.loads(line) for line in out] == [{"id": str(at)} | each for at, each in enumerate(documents)]
        if file_format == "parquet" and documents:
            table = parquet.read_table(out).to_pylist()
            assert all(
                same(row[name], each.get(name))
                for row, each in zip(table, documents, strict=True)
                for name in row
                if name != "id"
            )


def same(found: Any, value: Any) -> bool:
    if isinstance(value, str) or value is None or isinstance(value, bool):
        return found == value or (value is not None and found == json.dumps(value))
    if isinstance(value, int | float):
        return found == value if not isinstance(found, str) else math.isclose(json.loads(found), value)
    return True
