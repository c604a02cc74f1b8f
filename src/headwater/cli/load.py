"""`headwater load`: a file's rows as documents, pipelined."""

import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.failures import CommandError
from headwater.cli.options import DEFAULT_URL, NodeUrl, Password, User, connect, examples

if TYPE_CHECKING:
    from headwater.cli.readers import Document
    from headwater.client import Client

EXAMPLES = examples(
    "headwater load orders.jsonl --key id",
    "headwater load people.csv --key email --prefix person:",
    "headwater load events.parquet --key event_id --node couchbase://10.0.0.7:11210/events",
)
DOCUMENTS_PER_CALL = 20_000
"""Enough to fill the pipeline; few enough that the bar moves and Ctrl-C is heard."""


class Form(StrEnum):
    """File formats."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


def load(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="JSON lines, CSV or Parquet."),
    ],
    key: Annotated[str, typer.Option("--key", metavar="FIELD", help="The field whose value becomes the key.")],
    prefix: Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Put this before each key.")] = "",
    form: Annotated[
        Form | None, typer.Option("--format", help="How to read the file; by its name when left out.")
    ] = None,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Store every row of FILE as a JSON document.

    A row's key is the value of one of its fields; a later row with the same key replaces the earlier one. What was
    stored before a failure stays stored: loading again does no harm.
    """
    from headwater.cli.readers import open_source
    from headwater.cli.screen import count, err, progress, rate

    documents, total = open_source(file, key, form.value if form else None)
    console = err()
    started = time.monotonic()
    stored = 0
    with connect(node, user, password) as client, progress(console, "rate") as bar:
        task = bar.add_task(file.name, total=total or None, rate="")
        for part in _parts(documents):
            _store(client, prefix.encode(), part)
            stored += len(part)
            bar.update(task, completed=part[-1].position, rate=rate(stored, time.monotonic() - started))
    seconds = time.monotonic() - started
    typer.echo(f"{count(stored)} documents stored in {seconds:.1f} s, {rate(stored, seconds)}")


def _parts(documents: Iterator["Document"]) -> Iterator[list["Document"]]:
    """Cut the stream of documents into lists that fit one pipelined call."""
    part: list[Document] = []
    for document in documents:
        part.append(document)
        if len(part) == DOCUMENTS_PER_CALL:
            yield part
            part = []
    if part:
        yield part


def _store(client: "Client", prefix: bytes, part: list["Document"]) -> None:
    """Store one part; the first document that was refused ends the command."""
    refused = client.set_many((prefix + document.key, document.value) for document in part)
    if refused:
        key, error = next(iter(refused.items()))
        shown = key.decode(errors="backslashreplace")
        raise CommandError(f"{len(refused)} documents were refused, the first is {shown!r}: {error}")
