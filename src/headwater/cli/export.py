"""`headwater export`: write the documents of a bucket into a file, in the forms that `load` reads."""

import errno
import io
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, cast

import typer

from headwater.cli.failures import CommandError, InputError
from headwater.cli.forms import forms, remark, report
from headwater.cli.options import (
    DEFAULT_URL,
    CollectionName,
    NodeUrl,
    Password,
    User,
    connect,
    examples,
    scopes_text,
    typed,
)
from headwater.client.collections import parse_path
from headwater.errors import DiskFull, OptionError
from headwater.failpoints import failpoint

if TYPE_CHECKING:
    from headwater.cli.spool import Spool
    from headwater.cli.writers import ExportForm, RowError
    from headwater.client import Client

PART = ("first", 70)
EXAMPLES = examples(
    "headwater export orders.parquet --collection shop.orders",
    "headwater export copy.jsonl.gz; headwater load copy.jsonl.gz --node couchbase://10.0.0.7:11210/default",
    "headwater export people.csv --key email --prefix person:",
    "headwater export people.parquet --key email --types zip=text --overwrite",
    "headwater export - --format csv --key id | sort",
)
EXITS = {
    1: "a document can't be a row, or the disk is full; no file is left",
    2: "the file exists, among others",
}
KEY = "Write rows of what the documents hold, with the key in this field. Left out: documents with all of their own."
FORMAT = "What to write; by the file's name when left out."
TYPES = "With --key, types of Parquet's columns: zip=text,count=int,price=float,ok=bool; found out when left out."
SKIP_BAD = "With --key, leave out documents that can't be rows, and tell of each."
BAD_TOLD = 20


class ExportFormat(StrEnum):
    """File formats."""

    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"
    PARQUET = "parquet"


def export(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="JSON lines, CSV or Parquet; - writes to standard output.")
    ],
    key: Annotated[str, typer.Option("--key", metavar="FIELD", help=KEY)] = "",
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="TEXT", help="Only keys that begin so; FIELD is without it.")
    ] = "",
    file_format: Annotated[ExportFormat | None, typer.Option("--format", help=FORMAT)] = None,
    types: Annotated[str, typer.Option("--types", metavar="LIST", help=TYPES)] = "",
    encoding: Annotated[
        str, typer.Option("--encoding", metavar="NAME", help="Of text files, e.g. latin-1 or utf-16.")
    ] = "utf-8",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help=SKIP_BAD)] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Put it in place of a file that is there.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and check all of it, write nothing.")] = False,
    collection: CollectionName = None,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Write every document of a bucket to FILE, as it stands now.

    Without --key each row is a document with key, flags, expiry and collection, of all collections: headwater load FILE
    gives the same documents back, whatever their bytes. With --key the rows are what the documents hold, of one
    collection, for programs that know tables; headwater load FILE --key FIELD reads them. FILE gets its name when all
    of it is on the disk: ended before, nothing is there. Extended attributes are left out; headwater backup keeps them.
    """
    from headwater.cli.spool import Spool

    path = _output_path(file, overwrite)
    bad_documents = BadDocuments() if skip_bad else None
    form = _form(file, file_format, key, prefix, types, encoding)._replace(skip_bad=bad_documents)
    if collection is not None:
        parse_path(collection)
    began = time.monotonic()
    with _roomy(path), Spool(_spool_file(path), typed(prefix)) as spool:
        with connect(node, user, password) as client:
            _read(client, spool, collection, only_one=bool(key))
        document_count = _write(spool, form, _nowhere() if dry_run else _output(path, form))
    _tell(file, document_count, bad_documents, time.monotonic() - began, dry_run)


def _output_path(file: Path, overwrite: bool) -> Path | None:
    """Return the file to make, None for standard output.

    Raises: OptionError, typer.BadParameter.
    """
    if str(file) == "-":
        return None
    if re.match(r"[a-z][a-z0-9+.-]+:/", str(file)):  # a path has lost the second slash of a URL
        raise OptionError("file", str(file), "a file of this machine; headwater backup writes to object stores")
    if file.is_dir():
        raise typer.BadParameter(f"{str(file)!r} is a folder; name a file in it.")
    if not file.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {str(file.parent)!r}.")
    if file.exists() and not overwrite:
        raise typer.BadParameter(f"file {str(file)!r} exists; --overwrite puts the new one in its place.")
    return file


def _form(
    file: Path, file_format: ExportFormat | None, key: str, prefix: str, types: str, encoding: str
) -> "ExportForm":
    from headwater.cli.load import reading
    from headwater.cli.readers import format_of
    from headwater.cli.writers import ExportForm

    checked_form = reading(None, encoding, types, infer=False)
    try:
        format_ = file_format.value if file_format else format_of(file)
    except InputError as error:
        raise typer.BadParameter(f"{error}.") from None
    if types and (format_ != "parquet" or not key):
        raise typer.BadParameter("--types is for Parquet with --key; other forms have no types to choose.")
    if format_ == "parquet" and str(file) == "-" and sys.stdout.isatty():
        raise typer.BadParameter("Parquet is nothing for a terminal: name a file, or send it into one.")
    name = encoding.lower().replace("_", "-")
    return ExportForm(format_, "utf-8" if name == "utf8" else name, key or None, typed(prefix), checked_form.types)


@contextmanager
def _roomy(path: Path | None) -> Iterator[None]:
    """Explain a full disk if the block meets one."""
    try:
        yield
    except (DiskFull, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        folder = Path(tempfile.gettempdir()) if path is None else path.parent
        room = f"{shutil.disk_usage(folder).free >> 20} MiB are free in {folder}"
        message = "an export needs room for the documents twice, the second time as they are written"
        raise CommandError(f"{path or 'the export'}: no room left; {room}, and {message}") from None


def _spool_file(path: Path | None) -> IO[bytes]:
    """Return a file without a name, on a disk that must have room anyway; it is gone with this process in any
    case.
    """
    return cast(IO[bytes], tempfile.TemporaryFile(dir=None if path is None else path.parent))


def _read(client: "Client", spool: "Spool", collection: str | None, *, only_one: bool) -> None:
    from headwater.cli.meter import Meter
    from headwater.cli.spool import read_into
    from headwater.client.unread import unread_collections

    coverage = client.choose(None if only_one and collection is None else collection or "all")
    if only_one and collection is None and (unread_scopes := unread_collections(client)):
        remark(f"only the default collection is written; left out: {scopes_text(unread_scopes)}")
    total = sum(client.seqnos("all" if coverage else None).values())
    drain = client.batches(until="now", collections=coverage)
    with Meter("read", "changes", quiet=forms().quiet) as meter, drain as batches:
        read_into(spool, batches, lambda count: meter.show(min(count, total), total))


def _write(spool: "Spool", form: "ExportForm", output: AbstractContextManager[IO[bytes]]) -> int:
    """Write the file; return the number of its documents."""
    from headwater.cli.meter import Meter
    from headwater.cli.writers import write

    total, written = sum(map(len, spool.batches())), 0
    with Meter("written", "documents", quiet=forms().quiet) as meter, output as out:
        for written in write(out, spool.batches, form):
            failpoint("export.written")
            meter.show(written, total)
    return written


@contextmanager
def _output(path: Path | None, form: "ExportForm") -> Iterator[IO[bytes]]:
    """Yield the file, which gets its name when the block ends well; or standard output, which can't seek."""
    from headwater.lake.store import TableStore

    if path is not None:
        with (
            TableStore(str(path.parent), is_private=True).output(path.name) as out,
            _compressed_file(out, path) as text,
        ):
            yield text
    elif form.file_format == "parquet":
        with tempfile.TemporaryFile() as buffer:
            yield buffer
            buffer.seek(0)
            shutil.copyfileobj(buffer, sys.stdout.buffer)
    else:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()


def _nowhere() -> AbstractContextManager[IO[bytes]]:
    return cast("AbstractContextManager[IO[bytes]]", tempfile.TemporaryFile())


@contextmanager
def _compressed_file(out: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    """Yield a file compressed by its name: .gz, .bz2, .zst, .lz4."""
    import pyarrow as pa

    from headwater.cli.readers import COMPRESSIONS

    codec = COMPRESSIONS.get(path.suffix.lower())
    if codec is None:
        yield out
        return
    beneath: Any = pa.PythonFile(_UnclosedFile(out), "w")
    with pa.CompressedOutputStream(beneath, cast(Any, codec)) as compressed:
        yield cast(
            IO[bytes], _UnclosedFile(cast(IO[bytes], compressed))
        )  # Arrow's own tells a place that is not the text's


class _UnclosedFile(io.RawIOBase):
    """A file for Arrow, which otherwise closes its files."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._out.write(data)
        return len(data)


class BadDocuments:
    """The documents that were left out: each is a line on stderr, up to a limit."""

    def __init__(self) -> None:
        self.documents: int = 0

    def __call__(self, error: "RowError") -> None:
        """Report one document."""
        self.documents += 1
        if self.documents <= BAD_TOLD:
            remark(f"{error}; left out")


def _tell(file: Path, document_count: int, bad_documents: BadDocuments | None, seconds: float, dry_run: bool) -> None:
    """Report the result; on stderr if the documents went to standard output."""
    from headwater.cli.screen import rate, several

    left_out = bad_documents.documents if bad_documents else 0
    left_out_text = f"; {several(left_out, 'document')} left out" if left_out else ""
    if dry_run:
        report(
            f"{several(document_count, 'document')}, nothing was written{left_out_text}",
            documents=document_count,
            left_out=left_out,
        )
        return
    documents = several(document_count, "document")
    line = f"{documents} written in {seconds:.1f} s, {rate(document_count, seconds)}{left_out_text}"
    if str(file) == "-":
        remark(line)
    else:
        report(line, documents=document_count, left_out=left_out, file=str(file), seconds=round(seconds, 3))
