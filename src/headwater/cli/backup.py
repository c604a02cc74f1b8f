"""`headwater backup`: make, show, verify, restore and remove copies of a bucket in a folder or an object store."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headwater.cli.ages import read_age
from headwater.cli.failures import CommandError
from headwater.cli.forms import answer, remark, report
from headwater.cli.options import (
    DEFAULT_URL,
    NodeUrl,
    Password,
    User,
    Vbuckets,
    connect,
    examples,
    existing,
    paragraphs,
    vbucket_set,
)
from headwater.cli.screen import count, several
from headwater.cli.units import seconds

if TYPE_CHECKING:
    from headwater.backup.archive import Archive
    from headwater.backup.create import BackupProgress
    from headwater.backup.manifest import BackupManifest
    from headwater.backup.restore import RestorePoint
    from headwater.cluster.collections import Lacking

PART = ("operate", 20)
HELP = """Copies of a bucket in a folder or an object store: made, looked at, written back, removed.

A backup is Parquet files and a manifest with the SHA-256 of each. The first is full; each one after it holds what
changed since, and needs those before it."""
EXAMPLES = examples(
    "headwater backup create ./backups --node couchbase://127.0.0.1:11210/orders",
    "headwater backup list ./backups",
    "headwater backup verify s3://copies/orders",
    "headwater backup restore ./backups --node couchbase://10.1.0.7:11210/orders --dry-run",
    "headwater backup prune ./backups --keep 4",
)
EXITS_OF = {
    "create": {1: "no new backup was made; called again, it goes on"},
    "list": {1: "a backup is damaged or missing"},
    "verify": {1: "there is no backup, or a file is missing or not what was written; each is a line on stderr"},
    "restore": {1: "a backup is damaged (nothing was written), or the node refused; called again, it goes on"},
    "prune": {1: "there is no backup, or the archive is damaged"},
}

PATIENCE = "Go on trying for so long after failures that may pass: 60 unless given."
PlaceName = Annotated[
    str, typer.Argument(metavar="PLACE", help="A folder, or a URL that fsspec can open: s3://, gs://, abfs://.")
]
DEFAULT_ONLY = "a part of the bucket: the default collection alone (--default-collection-only)"
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but what was asked for, and errors.")]


def create(
    place: PlaceName,
    full: Annotated[bool, typer.Option("--full", help="Read everything, though an increment would do.")] = False,
    default_only: Annotated[
        bool, typer.Option("--default-collection-only", help="Leave out all other collections.")
    ] = False,
    vbuckets: Vbuckets = None,
    as_json: Json = False,
    quiet: Quiet = False,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Back a bucket up: what changed since the newest backup in PLACE, or all of it the first time.

    Each vbucket is whole at a seqno of its own. One that a failover has changed since is read again from where both
    histories agree, and a line says so. Ended or killed at any moment, it goes on when called again; until it has
    ended well there is no new backup. All collections are read, and a user who may read only parts of the bucket is
    refused; a backup after one that was made with the other choice of collections is a full one.
    """
    from headwater.backup import create as making
    from headwater.cli.meter import Meter

    target = _archive_place(place)
    with connect(node, user, password) as client, Meter("backup", "changes", quiet=quiet) as meter:
        numbers = vbucket_set(vbuckets)
        existing(client, numbers)
        choice = making.Choice(
            full=full, vbuckets=None if numbers is None else tuple(numbers), default_only=default_only
        )

        def tell(progress: "BackupProgress") -> None:
            meter.show(progress.done, progress.total)

        outcome = making.create(target, client, _bucket(node), choice, tell)
    report(f"{outcome.id}: {_in_words(outcome)} in {meter.seconds:.1f} s", **outcome.summary())
    if not (as_json or quiet):
        _tell_more(outcome)


def show(place: PlaceName, as_json: Json = False) -> None:
    """Print the backups in PLACE, oldest first, with what each holds and goes on from.

    Exit status 1 when one is damaged or missing.
    """
    archive = _archive(place)
    if as_json:
        summaries = [manifest.summary() for manifest in archive.backups.values()]
        typer.echo(json.dumps({"backups": summaries, "problems": archive.problems, "unfinished": archive.unfinished}))
    else:
        for manifest in archive.backups.values():
            typer.echo(f"{manifest.id}  {manifest.ended}  {_in_words(manifest)}")
            _tell_more(manifest)
        for name in archive.unfinished:
            typer.echo(f"{name}  begun and not finished")
        if not archive.backups and not archive.unfinished:
            typer.echo("there is no backup here")
    _fail(archive.problems)


def verify(
    place: PlaceName,
    backup: Annotated[str | None, typer.Option("--backup", metavar="ID", help="This one and those it needs.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Read every file of every backup and compare it with the SHA-256 that was written down.

    Exit status 1 when a file is missing, a bit has changed, or a backup does not go on where the one before ended.
    """
    from headwater.backup.verify import verify as look
    from headwater.cli.meter import Meter

    archive = _archive(place)
    if not archive.backups and not archive.problems:
        raise CommandError(f"{place}: there is no backup here")
    chain = None if backup is None else archive.chain(backup)
    with Meter("verify", "bytes", quiet=quiet) as meter:
        outcome = look(archive, chain, meter.show)
    line = f"{several(outcome.backups, 'backup')}, {several(outcome.files, 'file')}, {count(outcome.bytes)} bytes"
    if len(outcome.collections) > 1:
        line += f"; collections {', '.join(outcome.collections)}"
    parts = [each.id for each in chain or archive.backups.values() if each.default_only]
    if parts:
        line += f"; {', '.join(parts)}: {DEFAULT_ONLY}"
    report(line, **outcome.to_json())
    _fail(outcome.problems)


def restore(
    place: PlaceName,
    backup: Annotated[
        str | None, typer.Option("--backup", metavar="ID", help="Its end; of the newest unless given.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="The newest that had ended then: 2026-11-22T15:00:00Z.")
    ] = None,
    seqnos: Annotated[
        Path | None,
        typer.Option("--seqnos", metavar="FILE", help="These seqnos, as `headwater seqnos --json` prints them."),
    ] = None,
    nearest: Annotated[
        bool, typer.Option("--nearest", help="With --seqnos: where no backup ended at one, the end before it.")
    ] = False,
    vbuckets: Vbuckets = None,
    collections: Annotated[
        str | None,
        typer.Option("--collections", metavar="NAMES", help="Only these: shop.orders,shop.carts. All when left out."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Over newer versions too. Keys that came later stay all the same.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and check everything, write nothing.")] = False,
    retry: Annotated[float | None, seconds("--retry", PATIENCE)] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Write a backup into a bucket: documents and deletions with their revision, CAS, expiry, flags and attributes.

    Each goes into its collection; scopes and collections that are missing are made. Those that had been dropped when
    the backup ended stay away. The version with the higher (revision, CAS) wins, so newer documents stay unless --force
    is given; into an empty bucket the state of the backup comes whole. All files are checked before the first change is
    written. Interrupted, it can be called again: what is there already changes nothing.
    """
    from headwater.backup.collections import chosen_of, lacking
    from headwater.backup.restore import counts
    from headwater.backup.verify import verify as look
    from headwater.cli.meter import Meter

    archive = _archive(place)
    point = _point(archive, backup, at, seqnos, nearest, vbucket_set(vbuckets))
    choice_ = chosen_of(point.manifests, None if collections is None else collections.split(","))
    if dry_run:
        _tell_restore(point, counts(archive, point, choice_, force=force), "would be written, nothing was")
        return
    with connect(node, user, password) as client:
        client.noop()  # a wrong address or password is told before all files are read
        missing_collections = lacking(client, point.backups, choice_)
    with Meter("verify", "bytes", quiet=quiet) as meter:
        _fail(look(archive, point.chain, meter.show).problems)
    # Only once the backup is known to be whole: for a damaged one nothing is made that nobody could fill.
    _make(missing_collections, node, user, password)
    _write(archive, point, choice_, _target(node, user, password, retry), force, quiet)


def prune(
    place: PlaceName,
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="N", help="Keep N full backups and what goes on from them.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="Only what ended longer ago: 12h, 30d, 8w.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would go.")] = False,
    as_json: Json = False,
) -> None:
    """Remove old backups: full ones with all their increments. The newest full one stays, whatever is asked."""
    from headwater.backup import prune as pruning

    age = None if older_than is None else read_age("older-than", older_than, before="d")
    outcome = (
        pruning.plan(_archive(place), keep, age) if dry_run else pruning.carry_out(_archive_place(place), keep, age)
    )
    would = "would be" if dry_run else "were"
    removed = f"{several(len(outcome.backups), 'backup')}, {count(outcome.bytes)} bytes {would} removed"
    line = f"{removed}; {len(outcome.kept)} stay"
    say = answer if dry_run else report
    say(
        "\n".join([*outcome.backups, line]),
        removed=outcome.backups,
        bytes=outcome.bytes,
        kept=outcome.kept,
        dry_run=dry_run,
    )


def _archive_place(text: str) -> Any:
    from headwater.backup.place import place_of

    return place_of(text)


def _archive(text: str) -> "Archive":
    from headwater.backup.archive import Archive

    return Archive(_archive_place(text))


def _bucket(node: str) -> str:
    from headwater.client.routing import parse

    return parse(node).bucket


def _target(node: str, user: str | None, password: str | None, retry: float | None) -> Any:
    from headwater.spark.settings import parse_write

    options = {"url": node, "user": user, "password": password, "retrySeconds": None if retry is None else str(retry)}
    return parse_write({name: text for name, text in options.items() if text is not None} | {"withMeta": "true"})


def _write(
    archive: "Archive", point: "RestorePoint", choice_: frozenset[str] | None, target: Any, force: bool, quiet: bool
) -> None:
    """Write a point into a bucket and report the result."""
    from headwater.backup import restore as writing
    from headwater.cli.meter import Meter

    with Meter("restore", "changes", quiet=quiet) as meter:
        outcome = writing.restore(
            archive,
            point,
            target,
            force=force,
            collections=choice_,
            tell=lambda each: meter.show(each.done, each.total),
        )
    counts = {"stored": outcome.stored, "deleted": outcome.deleted + outcome.absent, "not needed": outcome.behind}
    _tell_restore(point, counts, f"in {meter.seconds:.1f} s")


def _make(missing_collections: "list[Lacking]", node: str, user: str | None, password: str | None) -> None:
    """Make scopes and collections; raise CommandError if that is impossible."""
    from headwater.cli.cluster.running import addresses, run
    from headwater.client.routing import parse
    from headwater.cluster.collections import make
    from headwater.wire.manifest import ManifestRefused

    if not missing_collections:
        return
    target = parse(node)
    if target.user is not None:
        user, password = target.login(user, password)
    seeds, place = addresses([target.url])
    try:
        run(lambda members, _: make(members, seeds, missing_collections), place, user, password)
    except ManifestRefused as error:
        raise CommandError(f"the collections of the backup can't be made: {error}") from None


def _point(
    archive: "Archive",
    backup: str | None,
    at: str | None,
    seqnos: Path | None,
    nearest: bool,
    vbuckets: list[int] | None,
) -> "RestorePoint":
    """Return the point that the options mean; raises typer.BadParameter, BackupError."""
    from headwater.backup.restore import RestorePoint, point_at, point_of

    if backup is not None and at is not None:
        raise typer.BadParameter("--backup and --at both say which backup; give one of them.")
    if nearest and seqnos is None:
        raise typer.BadParameter("--nearest goes with --seqnos.")
    point = point_of(archive, backup, None if at is None else _moment(at))
    if seqnos is not None:
        point = point_at(archive, point, _seqnos(seqnos), nearest=nearest)
    if vbuckets is not None:
        missing_vbuckets = [vb for vb in vbuckets if vb not in point.upto]
        if missing_vbuckets:
            raise CommandError(f"vbucket {missing_vbuckets[0]} is not in backup {point.chain[-1].id}")
        point = RestorePoint(point.chain, {vb: point.upto[vb] for vb in vbuckets})
    return point


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time; 2026-11-22T15:00:00Z is one.") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _seqnos(path: Path) -> dict[int, int]:
    try:
        return {int(vb): int(seqno) for vb, seqno in json.loads(path.read_bytes()).items()}
    except (ValueError, AttributeError, TypeError):
        raise typer.BadParameter(f"{path} is no JSON object of vbuckets and seqnos.") from None


def _in_words(manifest: "BackupManifest") -> str:
    changes = manifest.part.changes
    deleted = changes.get("deletions", 0) + changes.get("expirations", 0)
    kind = "full" if not manifest.parent else f"after {manifest.parent}"
    return (
        f"{kind}, {count(changes.get('mutations', 0))} stored, {count(deleted)} deleted, {count(manifest.size)} bytes"
    )


def _tell_more(manifest: "BackupManifest") -> None:
    """Print the collections, and the vbuckets that were read again."""
    from headwater.backup.collections import paths_of

    if manifest.default_only:
        typer.echo(f"  {DEFAULT_ONLY}")
    if manifest.collections is not None:
        typer.echo(
            f"  collections (manifest {manifest.collections.uid:x}): {', '.join(paths_of(manifest.collections))}"
        )
    for rollback in manifest.rolled_back:
        if rollback.purged:
            message = f"deletions up to seqno {rollback.purged} were purged before they were backed up"
            typer.echo(
                f"  vbucket {rollback.vbucket}: data loss: {message}; read again whole, so what they deleted is gone"
            )
            continue
        typer.echo(
            f"  vbucket {rollback.vbucket}: the histories agree up to seqno {rollback.common}, the backup before had "
            f"{rollback.had}; read again from {rollback.read_from}"
        )


def _tell_restore(point: "RestorePoint", counts: dict[str, int], ending: str) -> None:
    seqnos = {str(vb): seqno for vb, seqno in point.seqnos.items()}
    fields = {name.replace(" ", "_"): number for name, number in counts.items()}
    numbers = ", ".join(f"{count(number)} {name}" for name, number in counts.items())
    line = f"{point.chain[-1].id}, {several(len(point.upto), 'vbucket')}: {numbers} {ending}"
    if any(manifest.default_only for manifest in point.chain):
        line += f"; it was {DEFAULT_ONLY}"
    report(line, backup=point.chain[-1].id, seqnos=seqnos, **fields)


def _fail(problems: list[str]) -> None:
    for problem in problems:
        remark(problem)
    if problems:
        raise CommandError(f"{several(len(problems), 'problem')} in all; what is damaged can't be restored")


group: Final = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
for _name, _command, _examples in (
    ("create", create, examples("headwater backup create ./backups", "headwater backup create ./backups --full")),
    ("list", show, examples("headwater backup list ./backups", "headwater backup list ./backups --json")),
    ("verify", verify, examples("headwater backup verify ./backups")),
    (
        "restore",
        restore,
        examples(
            "headwater backup restore ./backups --dry-run",
            "headwater backup restore ./backups --at 2026-11-22T15:00:00Z --node couchbase://10.1.0.7:11210/orders",
            "headwater backup restore ./backups --seqnos ./before-the-release.json --force",
        ),
    ),
    (
        "prune",
        prune,
        examples(
            "headwater backup prune ./backups --keep 4 --dry-run", "headwater backup prune ./backups --older-than 30d"
        ),
    ),
):
    group.command(_name, help=paragraphs(_command.__doc__), epilog=_examples)(_command)
