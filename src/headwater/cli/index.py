"""`headwater index`: keep a full-text index of a bucket's documents, until it is ended."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.options import (
    ChosenCollections,
    ChosenScope,
    Engine,
    EngineName,
    Loss,
    OnDataLoss,
    Password,
    Retry,
    User,
    check_answers,
    examples,
    source_options,
)
from headwater.cli.reporting import (
    IdleRun,
    MetricsPort,
    ProgressFormat,
    ProgressOption,
    metered,
    reporter,
)
from headwater.cli.screen import count
from headwater.cli.stopping import asked
from headwater.pipelines.jobs import losses_line

if TYPE_CHECKING:
    from headwater.pipelines.index import IndexProgress

EXAMPLES = examples(
    "headwater index couchbase://127.0.0.1:11210/default ./search",
    "headwater index couchbase://10.0.0.7/articles ./search --field title --field body.text --tokenizer english",
    "headwater index couchbase://10.0.0.7/articles ./search --opensearch http://10.0.0.9:9200/articles",
    "headwater index couchbase://10.0.0.7/store ./search-store --collections shop.orders,shop.carts",
)


class Others(StrEnum):
    """The ways to deal with documents that are no JSON."""

    KEY = "key"
    TEXT = "text"
    QUARANTINE = "quarantine"


class Tokenizer(StrEnum):
    """The ways to cut text into what can be found."""

    WORDS = "words"
    ENGLISH = "english"
    PARTS = "parts"


SearchUser = Annotated[
    str | None, typer.Option("--opensearch-user", metavar="NAME", help="Who asks OpenSearch, if it wants to know.")
]
SearchPassword = Annotated[
    str | None,
    typer.Option(
        "--opensearch-password", metavar="TEXT", envvar="HEADWATER_OPENSEARCH_PASSWORD", help="Their password."
    ),
]


SearchUrl = Annotated[
    str | None,
    typer.Option("--opensearch", metavar="URL", help="Index there, http://HOST:PORT/INDEX, instead of in DIR."),
]


def index(
    url: Annotated[str, typer.Argument(metavar="URL", help="couchbase://HOST:PORT/BUCKET")],
    to: Annotated[str, typer.Argument(metavar="DIR", help="The index's folder, made if missing.")],
    fields: Annotated[
        list[str] | None,
        typer.Option("--field", metavar="PATH", help="A field to index, such as address.city; repeatable. Else all."),
    ] = None,
    others: Annotated[
        Others,
        typer.Option("--others", help="Documents that are no JSON: found by key, or as text, or kept aside."),
    ] = Others.KEY,
    tokenizer: Annotated[
        Tokenizer, typer.Option("--tokenizer", help="Whole words, English word stems, or parts of words.")
    ] = Tokenizer.WORDS,
    opensearch: SearchUrl = None,
    collections: ChosenCollections = None,
    scope: ChosenScope = None,
    engine: Engine = EngineName.SPARK,
    once: Annotated[bool, typer.Option("--once", help="End when all changes of now are in the index.")] = False,
    on_data_loss: Loss = OnDataLoss.WARN,
    retry: Retry = None,
    shown: ProgressOption = ProgressFormat.TEXT,
    metrics: MetricsPort = None,
    user: User = None,
    password: Password = None,
    opensearch_user: SearchUser = None,
    opensearch_password: SearchPassword = None,
) -> None:
    """Index the text of documents, for `headwater search`.

    What is stored, deleted or expires, and what a failover takes back, arrives there too. Of the default collection,
    unless others are chosen. Ended at any moment, it goes on where the index stands when started again with the same
    DIR.
    """
    check_answers(url, user, password, retry, collections=collections, scope=scope)
    from headwater.pipelines import index as pipeline
    from headwater.pipelines.opensearch import SearchServer

    server = None if opensearch is None else SearchServer(opensearch, opensearch_user, opensearch_password)
    idle = IdleRun(_line, "the index is level with the bucket")
    with asked(has_end=once) as stop, metered("index", metrics, reporter(shown, idle.line)) as told:
        pipeline.index(
            url,
            to,
            engine=engine.value,
            fields=fields or (),
            others=others.value,
            tokenizer=tokenizer.value,
            server=server,
            once=once,
            reading=source_options(user, password, on_data_loss, collections=collections, scope=scope),
            retry_seconds=retry,
            stop=stop,
            **told,
        )
        idle.tell(shown, unless=not once or stop())


def _line(progress: "IndexProgress") -> str:
    parts = [f"batch {progress.batches}: {count(progress.indexed)} indexed and {count(progress.removed)} removed"]
    if progress.aside:
        parts.append(f"{count(progress.aside)} kept aside")
    if progress.behind:
        parts.append(f"{count(progress.behind)} not needed")
    if progress.rollbacks:
        parts.append(f"{progress.rollbacks} vbuckets rolled back")
    parts += losses_line(progress.data_loss)
    return ", ".join(parts) + f" in {progress.seconds:.1f} s"
