"""Documents into files for `export`: JSON lines, CSV and Parquet, in one of two layouts.

Either with all of a document's own fields (`layout.py`), from which `load` restores it; or, with the name of a field
for the key, as rows of the documents' members:

| in the document           | in JSON lines  | in CSV            | in Parquet                            |
|---------------------------|----------------|-------------------|---------------------------------------|
| text                      | as it stands   | as it stands      | string                                |
| a number, true, false     | as it stands   | as JSON writes it | int64, double, bool                   |
| null, or no such member   | as it stands   | empty             | null                                  |
| an object, an array       | as it stands   | as JSON           | struct, list                          |
| members of several kinds  | as it stands   | each as above     | string: text as it stands, else JSON  |

The field of the key comes first where the document has none, and must hold the key where it has.
Numbers that a column's type would change (beyond 64 bits, or with fractions beside those beyond 2^53) make it text.
"""

from __future__ import annotations

import codecs
import csv as text_csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

from headwater.cli.layout import COLUMNS, cells, schema, stored_in
from headwater.cli.tail import json_line, writable
from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_BATCH = 8192
DELIMITERS = {"csv": ",", "tsv": "\t"}
_CONVERSION_ERRORS = (TypeError, ValueError, OverflowError)  # Arrow's own are among them


class RowError(HeadwaterError):
    """A document can't be a row; the message names it and has the reason."""

    def __init__(self, key: bytes, reason: str) -> None:
        super().__init__(f"the document {key.decode(errors='backslashreplace')!r} {reason}")


class Fraction(float):
    """A number with a fraction or an exponent, in its original form."""

    text: str

    def __new__(cls, text: str) -> Fraction:
        """Make a fraction from JSON's text."""
        number = super().__new__(cls, text)
        if math.isinf(number):
            raise ValueError(f"the number {text} is beyond what 64 bits hold")
        number.text = text
        return number


class ExportForm(NamedTuple):
    """The form of a file that an export writes.

    file_format: jsonl, csv, tsv or parquet.
    encoding: the encoding of text, by a name that Python knows.
    key_field: the field that holds the key; None to write the document's own fields only.
    prefix: a prefix that all keys have; it is left out of the field.
    types: the type of each Parquet column, by name; one of `readers.TYPES`.
    skip_bad: is called with the error of a document that can't be a row, and it is left out; None ends the export.
    """

    file_format: str
    encoding: str = "utf-8"
    key_field: str | None = None
    prefix: bytes = b""
    types: Mapping[str, str] = {}
    skip_bad: Callable[[RowError], None] | None = None


Source = Callable[[], "Iterator[pa.RecordBatch]"]
"""A function that yields the documents from the beginning at each call, since some forms need a first pass over all of
them.
"""


def write(out: IO[bytes], source: Source, form: ExportForm) -> Iterator[int]:
    """Write all documents; yield the number written so far.

    Raises:
        RowError: a document is no object, or has another value in the field of the key.
    """
    writers = {"jsonl": _lines, "csv": _table, "tsv": _table, "parquet": _parquet}
    rows = {"jsonl": _row_lines, "csv": _row_table, "tsv": _row_table, "parquet": _row_parquet}
    return (writers if form.key_field is None else rows)[form.file_format](out, source, form)


# ---------------------------------------------------------------------- with all that is their own


def _lines(out: IO[bytes], source: Source, form: ExportForm) -> Iterator[int]:
    from headwater.client import Mutation
    from headwater.client.collections import CollectionName

    count = 0
    with _text_into(out, form) as text:
        for batch in source():
            for each in stored_in(batch):
                collection_name = CollectionName(int(each.collection != "_default"), 0, each.scope, each.collection)
                meta = (each.vbucket, each.seqno, each.rev_seqno, each.cas, each.datatype)
                change = Mutation(*meta, each.key, each.value, 0, 0, each.flags, each.expiry, collection_name)
                line = json_line("mutation", change)
                text.write((line if writable(line, form.encoding) else json.dumps(json.loads(line))) + "\n")
            count += len(batch)
            yield count


def _table(out: IO[bytes], source: Source, form: ExportForm) -> Iterator[int]:
    count = 0
    with _text_into(out, form) as text:
        table = text_csv.writer(text, delimiter=DELIMITERS[form.file_format])
        table.writerow(COLUMNS)
        for batch in source():
            table.writerows(cells(each, form.encoding) for each in stored_in(batch))
            count += len(batch)
            yield count


def _parquet(out: IO[bytes], source: Source, form: ExportForm) -> Iterator[int]:
    import pyarrow as pa
    from pyarrow import parquet

    count, columns = 0, schema()
    with parquet.ParquetWriter(cast(Any, out), columns, compression="zstd") as writer:
        for batch in source():
            arrays = [batch.column(field.name).cast(field.type) for field in columns]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=columns))
            count += len(batch)
            yield count


@contextmanager
def _text_into(out: IO[bytes], form: ExportForm) -> Iterator[Any]:
    """Yield a text writer on a file that stays open; `io`'s own wrapper writes no UTF-16 mark if it can't seek."""
    text = codecs.getwriter(form.encoding)(out)
    yield text
    text.reset()
    out.flush()


# ---------------------------------------------------------------------- as rows of what they hold


def _objects(source: Source, form: ExportForm) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each document's own text, and its members with the key among them."""
    for batch in source():
        columns: list[list[Any]] = [batch.column(name).to_pylist() for name in ("key", "value")]
        for key, value in zip(*columns, strict=True):
            try:
                object_ = _object(key, value, form)
            except RowError as error:
                if form.skip_bad is None:
                    raise
                form.skip_bad(error)
                continue
            yield object_


def _object(key: bytes, value: bytes, form: ExportForm) -> tuple[bytes, dict[str, Any]]:
    assert form.key_field is not None, "rows have a field for the key"  # noqa: S101
    try:
        text = key.removeprefix(form.prefix).decode()
    except UnicodeDecodeError:
        raise RowError(key, "has a key that is no UTF-8; without --key it can be exported") from None
    members = _members(key, value)
    stored_key = _key_at(members, form.key_field)
    if stored_key is None:
        if not text:
            raise RowError(key, "has nothing behind the prefix to be its key")
        return b"", {form.key_field: text} | members
    if isinstance(stored_key, bool | float | dict | list) or str(stored_key) != text:
        raise RowError(key, f"holds {stored_key!r} in {form.key_field!r}, which is not its key; name another field")
    return value, members


def _members(key: bytes, value: bytes) -> dict[str, Any]:
    try:
        members = json.loads(value.decode(), parse_float=Fraction, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise RowError(key, f"is no JSON ({error}); without --key it can be exported") from None
    if not isinstance(members, dict):
        raise RowError(key, f"is a {type(members).__name__} and no JSON object; without --key it can be exported")
    return members


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number there")


def _key_at(members: dict[str, Any], field: str) -> Any:
    """Return the value that `load` takes for the key; None if there is none."""
    if field in members:
        return members[field]
    head, dot, names = field.partition(".")
    while dot:
        if isinstance(members.get(head), dict):
            return _key_at(members[head], names)
        next_name, dot, names = names.partition(".")
        head = f"{head}.{next_name}"
    return None


def _counted_rows(rows: Iterable[Any], each: Callable[[Any], Any]) -> Iterator[int]:
    """Call a function for each row, and yield the number of rows now and then."""
    number = 0
    for number, row in enumerate(rows, 1):
        each(row)
        if number % ROWS_PER_BATCH == 0:
            yield number
    yield number


def _row_lines(out: IO[bytes], source: Source, form: ExportForm) -> Iterator[int]:
    with _text_into(out, form) as text:
        yield from _counted_rows(
            _objects(source, form), lambda row: text.write(_line(row[0], row[1], form.encoding) + "\n")
        )


def _line(value: bytes, members: dict[str, Any], encoding: str) -> str:
    """Return a document in one line; its own text if that has the key, is one line and can be written."""
    text = value.translate(_ONE_LINE).decode() if value else _json(members)
    return text if writable(text, encoding) else json.dumps(members)


_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")  # in JSON line ends stand between its parts only


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if writable(text) else json.dumps(value, separators=(",", ":"))


def _names(source: Source, form: ExportForm) -> list[str]:
    """Return the members of all documents, in the order in which they are met; the key's field is the first."""
    assert form.key_field is not None, "rows have a field for the key"  # noqa: S101
    quiet_form = form._replace(skip_bad=None if form.skip_bad is None else lambda error: None)
    names: dict[str, None] = {}
    for _, members in _objects(source, quiet_form):
        names.update(dict.fromkeys(members))
    first = [form.key_field] if form.key_field in names or not names else []
    return [*first, *(name for name in names if name not in first)]


def _row_table(out: IO[bytes], source: Source, form: ExportForm) -> Iterator[int]:
    names = _names(source, form)
    with _text_into(out, form) as text:
        table = text_csv.writer(text, delimiter=DELIMITERS[form.file_format])
        table.writerow(names)
        yield from _counted_rows(
            _objects(source, form), lambda row: table.writerow([_cell(row[1].get(name), form) for name in names])
        )


def _cell(value: Any, form: ExportForm) -> str:
    text = _as_text(value)
    if text is None:
        return ""
    try:
        text.encode(form.encoding)
    except UnicodeEncodeError as error:
        raise ExportError(_unwritable(text[error.start], form.encoding)) from None
    return text


def _unwritable(character: str, encoding: str) -> str:
    if not writable(character):
        return f"{character!a} is half a character, which only JSON can name: --format jsonl"
    return f"{character!r} has no place in {encoding}; --encoding utf-8 has all"


class ExportError(HeadwaterError):
    """A document has a value that the file can't hold."""


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return value.text if isinstance(value, Fraction) else _json(value)


def _row_parquet(out: IO[bytes], source: Source, form: ExportForm) -> Iterator[int]:
    types = _column_types(source, form)
    start = out.tell() if out.seekable() else None
    while True:
        try:
            yield from _row_groups(out, source, form, types)
            return
        except _Changed as column:
            # A number late in the file that the type of all would change: it is known before anything is put in place.
            types[column.name] = "text"
            if start is None:
                raise ExportError(f"the column {column.name!r} has no one type: --types {column.name}=text") from None
            out.seek(start)
            out.truncate()


class _Changed(Exception):  # noqa: N818 - a note between two functions
    def __init__(self, name: str) -> None:
        self.name = name


def _row_groups(out: IO[bytes], source: Source, form: ExportForm, types: Mapping[str, Any]) -> Iterator[int]:
    import pyarrow as pa
    from pyarrow import parquet

    texts = {name: pa.string() if kind == "text" else kind for name, kind in types.items()}
    columns, count = pa.schema(list(texts.items())), 0
    with parquet.ParquetWriter(cast(Any, out), columns, compression="zstd") as writer:
        for part in _parts(source, form):
            arrays = [_array(name, kind, part) for name, kind in types.items()]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=columns))
            count += len(part)
            yield count
    yield count


def _parts(source: Source, form: ExportForm) -> Iterator[list[dict[str, Any]]]:
    rows = (members for _, members in _objects(source, form))
    while part := list(islice(rows, ROWS_PER_BATCH)):
        yield part


def _array(name: str, kind: Any, part: list[dict[str, Any]]) -> Any:
    import pyarrow as pa

    values = [members.get(name) for members in part]
    if kind == "text":
        try:
            return pa.array([_as_text(value) for value in values], pa.string())
        except UnicodeEncodeError as error:
            raise ExportError(_unwritable(error.object[error.start], "utf-8")) from None
    try:
        return pa.array(values, kind)
    except _CONVERSION_ERRORS:
        raise _Changed(name) from None


def _column_types(source: Source, form: ExportForm) -> dict[str, Any]:
    """Return a type of Arrow for each column, or "text", by the values of all documents."""
    import pyarrow as pa

    arrow = {"text": "text", "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    types: dict[str, Any] = dict.fromkeys(_names(source, form))
    stated = {name: arrow[kind] for name, kind in form.types.items()}
    if unknown_names := stated.keys() - types.keys():
        raise ExportError(f"--types names {min(unknown_names)!r}; the columns are {', '.join(types)}")
    quiet_form = form._replace(skip_bad=None if form.skip_bad is None else lambda error: None)
    for part in _parts(source, quiet_form):
        for name in types.keys() - stated.keys():
            types[name] = _wider(types[name], [members.get(name) for members in part])
    return {name: _final(stated.get(name, kind)) for name, kind in types.items()}


def _wider(wide: Any, values: list[Any]) -> Any:
    """Return the type that holds both the values of a type and these values without a change; "text" if there
    is none.
    """
    import pyarrow as pa

    if wide == "text":
        return wide
    try:
        new_kind = pa.array(values).type
        if wide is None or pa.types.is_null(wide):
            return new_kind
        schemas = [pa.schema([("value", kind)]) for kind in (wide, new_kind)]
        return pa.unify_schemas(schemas, promote_options="permissive").field("value").type
    except _CONVERSION_ERRORS:
        return "text"


def _final(kind: Any) -> Any:
    """Return a type that Parquet supports, which has no object without members."""

    return "text" if kind is None or (kind != "text" and _empty_within(kind)) else kind


def _empty_within(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return kind.num_fields == 0 or any(_empty_within(kind.field(at).type) for at in range(kind.num_fields))
    return pa.types.is_list(kind) and _empty_within(kind.value_type)
