"""The frame of a job's declaration: the options of all jobs, of those that follow a bucket, and of those with an
engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from inspect import get_annotations
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, cast

from headwater.errors import OptionError
from headwater.options import SECONDS, Option, check, option, options_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.pipelines.sinks import CountingSink
    from headwater.pipelines.watch import BatchWatch

P = TypeVar("P")
ENGINE = "Spark, or worker processes of this command without Java."
CHECKPOINT = "Where Spark notes how far this is; of this job alone."
Q = ParamSpec("Q")
VBUCKETS_SHOWN = 10


@dataclass
class JobProgress:
    """Progress of a job since this run began, reported after each batch; each job has counts of its own.

    Attributes:
        batches: number of finished batches.
        rollbacks: vbuckets of which a failover took back changes that the job had handled.
        retries: number of times that the job began anew.
        problem: the reason of the last retry, until a batch succeeded.
        seconds: since this run began.
        data_loss: vbuckets of which deletions were purged before this run read them; each was read again whole.
    """

    ROWS: ClassVar[tuple[str, ...]] = ()
    """The counts of rows or changes, by what became of them."""

    batches: int = 0
    rollbacks: int = 0
    retries: int = 0
    problem: str = ""
    seconds: float = 0.0
    data_loss: list[int] = field(default_factory=list)

    def note_losses(self, vbuckets: Iterable[int | str]) -> None:
        """Note vbuckets in which deletions were missed."""
        self.data_loss = sorted({*self.data_loss, *map(int, vbuckets)})

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dict of JSON types."""
        return asdict(self)


class JobBucket(NamedTuple):
    """A bucket that a job connects to before its work begins, so that a wrong address or password is reported at once,
    and not after Spark's start and its patience.

    Attributes:
        say_unread: True to name the collections that are not read.
    """

    url: str
    user: str | None
    password: str | None
    say_unread: bool = True
    collections: str | None = None
    scope: str | None = None


@dataclass(kw_only=True)
class DeclaredJob(Generic[P]):
    """The options of every job. Fields without a help text are no options of the command line.

    Attributes:
        reading: further options of the `dcp` source, such as `maxChangesPerTrigger`.
        spark: a session; without one the job starts its own, or worker processes (`engine`).
        workers: the number of worker processes: 0 for this process only, None for one per core.
        interval_seconds: time from the start of one batch to that of the next, at least.
        progress: called after each batch and before each new attempt, in any thread.
        stop: called several times a second; True ends the job.
        watch: gets the time of each batch, and the lag behind the bucket.
    """

    NAME: ClassVar[str]
    """The name of its command, and of its metrics."""
    PART: ClassVar[tuple[str, int]]
    """The part of the list of commands that a job of ours is in, and its place there (cli/listed.py)."""
    WORK: ClassVar[str]
    """The function that does the work, "module:function"; it gets the job and returns the last progress."""
    DONE: ClassVar[str] = "dealt with"
    """The end of "End when all changes of now are ..."."""
    LEVEL: ClassVar[str] = ""
    """The reason for which a run with --once had nothing to do; where it is left out, that is not told."""
    EXAMPLES: ClassVar[tuple[str, ...]] = ()
    EXITS: ClassVar[Mapping[int, str]] = {}
    """The meaning of exit statuses, of this job in particular."""
    PLAN: ClassVar[str] = ""
    """The coroutine that says what a job would do, "module:function", where it has the option `dry_run`."""
    HAS_END: ClassVar[bool] = False
    """True if it ends by itself, without the option `once`."""
    TRACED: ClassVar[bool] = False
    """True if it makes spans (docs/howto/traces.md)."""

    retry_seconds: float | None = option(
        None,
        "Go on trying for so long after failures that may pass: 300 unless given, 30 with --once.",
        flag="retry",
        unit=SECONDS,
        least=0,
    )
    user: str | None = option(None, "Who asks.", metavar="NAME", env="HEADWATER_USER")
    password: str | None = option(
        None,
        "The user's password; it is asked for when left out. Others may see what is typed here: --password-file.",
        metavar="TEXT",
        env="HEADWATER_PASSWORD",
        secret=True,
    )
    once: bool = False
    dry_run: bool = False
    engine: str = "spark"
    reading: Mapping[str, str] = field(default_factory=dict)
    spark: SparkSession | None = None
    workers: int | None = None
    interval_seconds: float = 1.0
    progress: Callable[[P], None] = lambda done: None
    stop: Callable[[], bool] = lambda: False
    watch: BatchWatch | None = None

    @classmethod
    def options(cls) -> list[Option]:
        """Return the options in the order of the help: a job's own first, then those of more and more jobs."""
        own_options, ordered = {each.field: each for each in options_of(cast("type", cls))}, dict[str, Option]()
        for base in cls.__mro__:
            names = get_annotations(base)
            ordered |= {name: own_options[name] for name in names if name in own_options and name not in ordered}
        return list(ordered.values())

    @classmethod
    def typed(cls, name: str) -> str:
        """Return an option in the command line's form, for a refusal that names it. Raises KeyError if there is
        none.
        """
        return f"--{next(option.name for option in cls.options() if option.field == name)}"

    def run(self) -> P:
        """Do the work, until it is done or `stop` ends it; return the last progress.

        Raises:
            OptionError: invalid options.
            SparkUnavailable: Spark can't be started here.
            HeadwaterError: what is not done is done again by the next run.
        """
        self.check()
        return cast("P", _import_function(self.work)(self))

    @property
    def work(self) -> str:
        """The function that does the work, as "module:function"."""
        return self.WORK

    def check(self) -> None:
        """Check each option, and the options that depend on each other. Raises OptionError."""
        check(self)

    async def plan(self) -> tuple[str, dict[str, Any]]:
        """Return the plan of the work, as lines for people and as JSON types."""
        return cast("tuple[str, dict[str, Any]]", await _import_function(self.PLAN)(self))

    def prepare(self) -> None:
        """Start slow parts, such as worker processes, while the buckets are looked up. Raises SparkUnavailable."""

    def remarks(self) -> Iterator[str]:
        """Yield remarks for the user about these options."""
        yield from ()

    def buckets(self) -> Iterator[JobBucket]:
        """Yield the buckets that the job needs."""
        yield from ()

    def reach(self) -> None:
        """Connect to ends that are no buckets, so that a wrong address is reported before the work begins."""

    def line(self, progress: P) -> str:
        """Return the progress after a batch as a line for people."""
        return str(progress)


@dataclass(kw_only=True)
class FollowingJob(DeclaredJob[P]):
    """A job that follows a bucket: the options of its source."""

    EXITS: ClassVar[Mapping[int, str]] = {
        0: "--once: all is done; else Ctrl-C or SIGTERM; it goes on from there",
        1: "it gave up after --retry, deletions were purged unread (--on-data-loss fail), or nobody takes its output",
    }
    SOURCE: ClassVar[tuple[str, ...]] = ("user", "password", "min_persisted", "collections", "scope", "since")
    """Fields that are options of the `dcp` source, too."""

    source: str = field(default="", kw_only=False)
    once: bool = option(False, "End when all changes of now are {done}.")
    collections: str | None = option(None, "Which collections: all, or names such as shop.orders,...", metavar="NAMES")
    scope: str | None = option(None, "All collections of this scope, instead of --collections.", metavar="NAME")
    on_data_loss: str = option(
        "warn", "When deletions were purged unread: read again whole and say so, or end.", choices=("warn", "fail")
    )

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        from headwater.client.routing import parse

        return parse(self.source).bucket

    def source_options(self) -> dict[str, str]:
        """Return the options of the source; those of `reading` override others."""
        values = {option.camel: getattr(self, option.field) for option in self.options() if option.field in self.SOURCE}
        set_options = {name: str(value) for name, value in values.items() if value is not None}
        loss = {"failOnDataLoss": "true"} if self.on_data_loss == "fail" else {}
        # The last of two names counts: a program's own options override those that the command line's fields mean.
        return {"url": self.source, **set_options, **loss, **self.reading}

    def buckets(self) -> Iterator[JobBucket]:
        """Yield the bucket that is followed."""
        yield JobBucket(self.source, self.user, self.password, True, self.collections, self.scope)


@dataclass(kw_only=True)
class OnEngines(FollowingJob[P]):
    """A job that runs with Spark, or without it in worker processes, and brings changes into a sink."""

    WORK: ClassVar[str] = "headwater.pipelines.job:work"
    TRACED: ClassVar[bool] = True
    PROGRESS: ClassVar[type[Any]] = JobProgress
    """Makes the progress of a run."""

    engine: str = option("spark", ENGINE, choices=("spark", "local"))

    def sink(self) -> CountingSink[P]:
        """Open the sink, for each attempt. A job without a sink names its WORK."""
        raise TypeError(f"{type(self).__name__} has neither a sink() nor WORK of its own")


@dataclass(kw_only=True)
class FromNow(FollowingJob[P]):
    """A job that begins with new changes only; with `once`, and without a checkpoint, it begins with all changes."""

    since: str | None = option(
        None,
        "Without a checkpoint: latest, what is written from now on; with --once earliest.",
        flag="from",
        choices=("latest", "earliest"),
        text="startingOffsets",
    )

    def source_options(self) -> dict[str, str]:
        """Return the options of the source, with the start of the read."""
        return {"startingOffsets": "earliest" if self.once else "latest", **super().source_options()}

    def beginning(self) -> dict[str, Any]:
        """Return the offset at which a new sink begins, for a job whose sink keeps its own position. Raises
        OptionError.
        """
        from headwater.spark.settings import parse

        return parse(self.source_options(), streaming=True).starting_offsets.to_json()


class WithCheckpoint(FollowingJob[P]):
    """A job on Spark with effects that may happen twice: its position is in a checkpoint.

    Attributes:
        checkpoint: its folder or URL. Each job declares this field after its own.
    """

    checkpoint: str | Path

    @property
    def place(self) -> str:
        """The checkpoint's folder or URL; Spark may have another working directory than this process."""
        text = str(self.checkpoint)
        return text if "://" in text else str(Path(text).absolute())


def _import_function(place: str) -> Callable[..., Any]:
    """Return the function at "module:function"."""
    module, _, name = place.partition(":")
    return cast("Callable[..., Any]", getattr(import_module(module), name))


def session_settings(arguments: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Return settings of a Spark session from the command line's NAME=VALUE. Raises OptionError."""
    if isinstance(arguments, Mapping):
        return dict(arguments)
    settings = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals or not name.strip():
            raise OptionError("conf", name, "NAME=VALUE, such as spark.sql.catalogImplementation=hive")
        settings[name.strip()] = value
    return settings


def check_states(job: FollowingJob[Any], noun: str, effect: str) -> None:
    """Check that the batches of a job end where the bucket has a state; with `minPersisted` one could end within a
    snapshot.

    Args:
        noun: the job in the refusal, such as "a publication".
        effect: the reason why the option is not needed.

    Raises:
        OptionError: the source has the option `minPersisted`.
    """
    from headwater.spark.settings import parse

    wanted = parse(job.source_options(), streaming=True).min_persisted
    if wanted is not None:
        text = f"an option of {noun}, whose batches end where the bucket has a state: leave it out; {effect}"
        raise OptionError("minPersisted", wanted, text)


def losses_line(vbuckets: Sequence[int], effect: str = "so these were read again whole") -> list[str]:
    """Return a line about vbuckets in which deletions were missed, in a list; an empty list if there are none."""
    if not vbuckets:
        return []
    numbers = ", ".join(map(str, vbuckets[:VBUCKETS_SHOWN])) + (", ..." if len(vbuckets) > VBUCKETS_SHOWN else "")
    return [f"data loss in vbuckets {numbers}: deletions were purged unread, {effect}"]


def with_session(job: Callable[Q, DeclaredJob[P]]) -> Callable[Concatenate[SparkSession | None, Q], P]:
    """Return a function that creates a job and runs it on the session that is its first argument; None runs it without
    Spark.
    """

    def run(spark: SparkSession | None, /, *arguments: Q.args, **options: Q.kwargs) -> P:
        new_job = job(*arguments, **options)
        new_job.spark, new_job.engine = spark, "local" if spark is None else "spark"
        return new_job.run()

    return run
