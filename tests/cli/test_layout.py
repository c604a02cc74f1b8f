"""The fields of a document in CSV, there and back, in any encoding."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cli.layout import COLUMNS, ExportedDocument, cells, missing, of_cells, schema

DOCUMENTS = st.builds(
    ExportedDocument,
    *(st.integers(0, 1023), st.integers(1, 2**48), st.integers(1, 2**64 - 1), st.integers(1, 2**48), st.just(0)),
    *(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.just("shop"), st.just("orders")),
    *(st.binary(min_size=1, max_size=20) | st.text(min_size=1).map(lambda text: text.encode(errors="replace")),) * 2,
)


@given(document=DOCUMENTS, encoding=st.sampled_from(["utf-8", "utf-16", "latin-1", "cp1252", "shift_jis", "ascii"]))
def test_fields_come_back_as_they_were(document: ExportedDocument, encoding: str) -> None:
    row = [cell.encode(encoding).decode(encoding) for cell in cells(document, encoding)]
    expected = (document.key, document.value, document.flags, document.expiry, "shop.orders")
    assert of_cells(dict(zip(COLUMNS, row, strict=True))) == expected


def test_a_key_that_is_no_text_is_shown_all_the_same() -> None:
    row = cells(ExportedDocument(1, 2, 3, 4, 0, 5, 6, "_default", "_default", b"\xffraw", b"\xfe"), "utf-8")
    assert row == ["1", "2", "3", "4", "_default", "_default", "\\xffraw", "/3Jhdw==", "5", "6", "", "/g=="]


def test_columns_that_a_file_may_lack_are_as_if_empty() -> None:
    assert of_cells({"key": "k", "value": ""}) == (b"k", b"", 0, 0, None)
    assert missing(["key", "value"]) == [] and missing(["id"]) == ["key", "value"]
    assert set(schema().names) <= set(COLUMNS)


@pytest.mark.parametrize(("row", "why"), [({"value_base64": "?"}, "no base64"), ({"flags": "x"}, "flags is 'x'")])
def test_a_field_that_is_none_is_told(row: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        of_cells({"key": "k", "value": "v"} | row)
