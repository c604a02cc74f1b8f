"""Work on the contents of a cluster: its buckets and collections, its founding, TLS among its nodes, mirrors' tables.

Each kind of work has a plan and words that confirm it, and runs the code of the command of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from headwater.cluster import buckets, collections, encryption, founding
from headwater.cluster.buckets import BucketWish
from headwater.cluster.collections import CollectionPath
from headwater.console import readings
from headwater.console.work import (
    ASKED_KINDS,
    REPLICAS_MAX,
    AskedWork,
    Job,
    Outcome,
    Shown,
    Work,
    addresses_of,
    number_from,
)
from headwater.errors import ClusterError, OptionError
from headwater.wire.manifest import ManifestRefused

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.members import Members
    from headwater.console.desk import ConsoleSettings
    from headwater.wire.manifest import CollectionsManifest

__all__ = ["KINDS", "asked_work"]

QUOTA_MIB_MAX = 2**24
TTL_MAX = 2**31 - 1
PLAN_SECONDS = 300.0
"""The time for the plan of work in a folder; an object store lists a large table for minutes."""
Fields: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _MakeBucket:
    wish: BucketWish

    kind = "bucket-create"

    @property
    def title(self) -> str:
        return f"Make bucket {self.wish.name}"

    def confirmation(self, bucket: str) -> str:
        return ""

    async def plan(self, members: Members, seeds: Sequence[Address]) -> Shown:
        _check_new(self.wish.name, await buckets.names(members, seeds))
        room = f"{self.wish.quota_mib:,} MiB on each node" if self.wish.quota_mib else "as much as the disk has"
        many = (
            "as many vbuckets as the first bucket" if self.wish.vbuckets is None else f"{self.wish.vbuckets} vbuckets"
        )
        return Shown(sentences=(f"Bucket {self.wish.name} is made on all nodes, with {many}.", f"It may take {room}."))

    async def run(self, members: Members, seeds: Sequence[Address], job: Job) -> Outcome:
        nodes = await buckets.create(members, seeds, self.wish)
        return "done", f"{self.wish.name} is there, on {nodes:,} nodes"


@dataclass(frozen=True, slots=True)
class _DropBucket:
    name: str

    kind = "bucket-drop"

    @property
    def title(self) -> str:
        return f"Drop bucket {self.name}"

    def confirmation(self, bucket: str) -> str:
        return self.name

    async def plan(self, members: Members, seeds: Sequence[Address]) -> Shown:
        known = await buckets.names(members, seeds)
        if self.name not in known:
            raise OptionError("bucket", self.name, f"one of {', '.join(known)}")
        if self.name == known[0]:
            raise OptionError("bucket", self.name, "not the first bucket, which is the folder of the node itself")
        uuids = await buckets.uuids(members, seeds, self.name)
        lines = (f"Bucket {self.name} goes with all its documents, on all nodes.", NO_WAY_BACK)
        return Shown(sentences=lines, bucket=self.name, uuids=uuids)

    async def run(self, members: Members, seeds: Sequence[Address], job: Job) -> Outcome:
        return "done", f"{self.name} is dropped, on {await buckets.drop(members, seeds, self.name):,} nodes"


@dataclass(frozen=True, slots=True)
class _SetQuota:
    name: str
    mib: int

    kind = "bucket-quota"

    @property
    def title(self) -> str:
        return f"Quota of bucket {self.name}: {_room(self.mib)}"

    def confirmation(self, bucket: str) -> str:
        return ""

    async def plan(self, members: Members, seeds: Sequence[Address]) -> Shown:
        before = await buckets.quotas(members, seeds, self.name)
        rows = tuple((str(node), _room(mib), _room(self.mib)) for node, mib in before.items())
        limit = (
            "Over its quota a bucket refuses documents as on a full disk. Less than its files take already is refused."
        )
        uuids, is_empty = await buckets.uuids(members, seeds, self.name), set(before.values()) == {self.mib}
        return Shown(("node", "may take", "then"), rows, (limit,), is_empty, self.name, uuids)

    async def run(self, members: Members, seeds: Sequence[Address], job: Job) -> Outcome:
        nodes = await buckets.set_quota(members, seeds, self.name, self.mib)
        return "done", f"{self.name} may take {_room(self.mib)}, on {nodes:,} nodes"


@dataclass(frozen=True, slots=True)
class _MakeCollection:
    path: CollectionPath
    max_ttl: int | None = None

    kind = "collection-create"

    @property
    def title(self) -> str:
        return f"Make {'collection' if self.path.collection else 'scope'} {self.path}"

    def confirmation(self, bucket: str) -> str:
        return ""

    async def plan(self, members: Members, seeds: Sequence[Address]) -> Shown:
        manifest = await collections.current(members, seeds)
        limit = "" if self.max_ttl is None else f" No document in it lives longer than {self.max_ttl:,} s."
        is_there = self.path.is_in(manifest)
        return Shown(sentences=(f"{self.path} is made in this bucket, on all nodes.{limit}",), is_empty=is_there)

    async def run(self, members: Members, seeds: Sequence[Address], job: Job) -> Outcome:
        manifest = await _changed(members, seeds, collections.creation(self.path, self.max_ttl))
        return "done", f"{self.path} is there; manifest {manifest.uid:x}"


@dataclass(frozen=True, slots=True)
class _DropCollection:
    path: CollectionPath

    kind = "collection-drop"

    @property
    def title(self) -> str:
        return f"Drop {'collection' if self.path.collection else 'scope'} {self.path}"

    def confirmation(self, bucket: str) -> str:
        return str(self.path)

    async def plan(self, members: Members, seeds: Sequence[Address]) -> Shown:
        manifest = await collections.current(members, seeds)
        if not self.path.is_in(manifest):
            raise OptionError("name", str(self.path), "a scope or a collection that is there")
        uuids = await buckets.uuids(members, seeds, members.bucket)
        return Shown(sentences=self._sentences(manifest), bucket=members.bucket, uuids=uuids)

    def _sentences(self, manifest: CollectionsManifest) -> tuple[str, ...]:
        """The collections that go with this manifest, by name and id: one that is made anew has another id."""
        gone = [
            f"{CollectionPath(scope.name, each.name)} goes with all its documents; its id is {each.id:x}."
            for scope, each in manifest.each_collection()
            if self.path in (CollectionPath(scope.name), CollectionPath(scope.name, each.name))
        ]
        return (*(gone or [f"{self.path} goes; nothing is in it."]), NO_WAY_BACK)

    async def run(self, members: Members, seeds: Sequence[Address], job: Job) -> Outcome:
        remove = collections.removal(self.path)

        def edit(manifest: CollectionsManifest, ids: tuple[int, int]) -> CollectionsManifest:
            as_shown = job.plan is None or job.plan.sentences == self._sentences(manifest)
            if self.path.is_in(manifest) and not as_shown:
                raise ManifestRefused(f"{self.path} is not what was shown: it, or what is in it, was made anew since")
            return remove(manifest, ids)

        manifest = await _changed(members, seeds, edit)
        return "done", f"{self.path} is dropped; manifest {manifest.uid:x}"


@dataclass(frozen=True, slots=True)
class _Init:
    nodes: tuple[Address, ...]
    replicas: int
    encrypted: bool

    kind = "init"

    @property
    def title(self) -> str:
        return f"Make a cluster of {', '.join(map(str, self.nodes))}"

    def confirmation(self, bucket: str) -> str:
        return "yes"

    async def plan(self, members: Members, seeds: Sequence[Address]) -> Shown:
        plan = await founding.planned(members, self.nodes, self.replicas, encrypted=self.encrypted)
        rows = [(str(each), *(f"{len(held):,}" for held in plan.map.held_by(each))) for each in plan.map.servers]
        lines = [f"{plan.data_on} has data and owns them all; a rebalance spreads them."] if plan.data_on else []
        return Shown(("node", "active", "replicas"), tuple(rows), tuple(lines))

    async def run(self, members: Members, seeds: Sequence[Address], job: Job) -> Outcome:
        plan = await founding.found(members, self.nodes, self.replicas, encrypted=self.encrypted)
        return "done", f"{len(plan.map.servers):,} nodes are a cluster, map {plan.map.epoch}:{plan.map.rev}"


@dataclass(frozen=True, slots=True)
class _Encryption:
    on: bool

    kind = "tls"

    @property
    def title(self) -> str:
        return f"Nodes speak {'TLS' if self.on else 'without TLS'} with each other"

    def confirmation(self, bucket: str) -> str:
        return "yes"

    async def plan(self, members: Members, seeds: Sequence[Address]) -> Shown:
        map_ = (await members.survey(seeds)).map
        now, then = ("by" if on else "without" for on in (map_.encrypted, self.on))
        sentence = f"The {len(map_.servers):,} nodes call each other {now} TLS now, and then {then} TLS."
        return Shown(sentences=(sentence, "Ports for TLS are taken up as they are now."))

    async def run(self, members: Members, seeds: Sequence[Address], job: Job) -> Outcome:
        known = await encryption.set_encryption(members, seeds, encrypted=self.on)
        how = "by" if known.encrypted else "without"
        return "done", f"the nodes call each other {how} TLS, map {known.epoch}:{known.rev}"


@dataclass(frozen=True, slots=True)
class _TableUpkeep:
    place: str
    kind: str

    @property
    def title(self) -> str:
        return f"{'Fold files' if self.kind == 'fold' else 'Remove old files'} of the table {self.place}"

    def confirmation(self, bucket: str) -> str:
        return "" if self.kind == "fold" else "yes"

    async def plan(self, members: Members, seeds: Sequence[Address]) -> Shown:
        return await readings.bounded(self.place, self._plan, PLAN_SECONDS)

    async def run(self, members: Members, seeds: Sequence[Address], job: Job) -> Outcome:
        job.now = "at work in the folder"
        return "done", await readings.begin(self._run)  # the loop's own threads also look up the names of hosts

    def _plan(self) -> Shown:
        from headwater.lake import upkeep  # noqa: PLC0415 - its library is of an extra of its own
        from headwater.pipelines.tables import open_table  # noqa: PLC0415

        log, _ = open_table(self.place)
        if self.kind == "fold":
            chosen = len(upkeep.choose(log.state))
            sentence = f"{chosen:,} of {len(log.state.files):,} files are folded. A mirror may run meanwhile."
            return Shown(sentences=(sentence,), is_empty=not chosen)
        gone = upkeep.vacuum(log, None, dry=True)
        sentence = f"{len(gone):,} files are removed that no version within the table's retention needs."
        return Shown(sentences=(sentence, "Versions older than that can't be read any more."), is_empty=not gone)

    def _run(self) -> str:
        from headwater.lake import upkeep  # noqa: PLC0415
        from headwater.pipelines.tables import open_table  # noqa: PLC0415

        log, indexes = open_table(self.place)
        if self.kind == "vacuum":
            return f"{len(upkeep.vacuum(log, None, dry=False)):,} files were removed"
        folded = upkeep.optimize(log, indexes, everything=False)
        upkeep.checkpoint(log)
        return f"{folded:,} files were folded; the table has {len(log.state.files):,}"


NO_WAY_BACK = "There is no way back but a backup."


def asked_work(kind: str, fields: Fields, settings: ConsoleSettings) -> Work:
    """Read a form for work of any kind.

    Raises:
        OptionError: an unknown kind, or an invalid value of a field.
    """
    reading = _READING.get(kind)
    return AskedWork.of(kind, fields, settings.target) if reading is None else reading(fields, settings)


def _make_bucket(fields: Fields, settings: ConsoleSettings) -> Work:
    vbuckets = _optional(fields, "vbuckets", 1024)
    replicas = _optional(fields, "replicas", REPLICAS_MAX)
    return _MakeBucket(
        BucketWish(_name(fields), vbuckets, _optional(fields, "quota_mib", QUOTA_MIB_MAX) or 0, replicas)
    )


def _make_collection(fields: Fields, settings: ConsoleSettings) -> Work:
    path, max_ttl = CollectionPath.parse(_name(fields)), _optional(fields, "max_ttl", TTL_MAX) or None
    if max_ttl is not None and not path.collection:
        raise OptionError("max_ttl", max_ttl, "empty for a scope: it is of a collection")
    return _MakeCollection(path, max_ttl)


def _init(fields: Fields, settings: ConsoleSettings) -> Work:
    nodes = addresses_of("nodes", fields.get("nodes", ""), settings.target)
    return _Init(nodes, _optional(fields, "replicas", REPLICAS_MAX) or 0, bool(fields.get("tls")))


def _upkeep(kind: str) -> Callable[[Fields, ConsoleSettings], Work]:
    def upkeep(fields: Fields, settings: ConsoleSettings) -> Work:
        if (place := fields.get("table", "")) not in settings.lakes:
            raise OptionError("table", place[:80], "one that this console was given by --lake")
        return _TableUpkeep(place, kind)

    return upkeep


_READING: dict[str, Callable[[Fields, ConsoleSettings], Work]] = {
    "bucket-create": _make_bucket,
    "bucket-drop": lambda fields, settings: _DropBucket(_name(fields)),
    "bucket-quota": lambda fields, settings: _SetQuota(
        _name(fields), number_from("quota_mib", fields.get("quota_mib", "").strip(), QUOTA_MIB_MAX)
    ),
    "collection-create": _make_collection,
    "collection-drop": lambda fields, settings: _DropCollection(CollectionPath.parse(_name(fields))),
    "init": _init,
    "tls": lambda fields, settings: _Encryption(fields.get("encryption") == "on"),
    "fold": _upkeep("fold"),
    "vacuum": _upkeep("vacuum"),
}


KINDS = (*ASKED_KINDS, *_READING)
"""All kinds of work, by their names in addresses."""


def _name(fields: Fields) -> str:
    if not (name := fields.get("name", "").strip()):
        raise OptionError("name", "", "a name")
    return name


def _optional(fields: Fields, name: str, most: int) -> int | None:
    text = fields.get(name, "").strip()
    return number_from(name, text, most) if text else None


def _check_new(name: str, known: Sequence[str]) -> None:
    if name in known:
        raise OptionError("bucket", name, f"none of {', '.join(known)}, which are there")


def _room(mib: int) -> str:
    return f"{mib:,} MiB" if mib else "the disk"


async def _changed(members: Members, seeds: Sequence[Address], edit: Any) -> CollectionsManifest:
    """Change the manifest; raise an impossible change as a ClusterError, as the command does."""
    try:
        return await collections.change(members, seeds, edit)
    except ManifestRefused as error:
        raise ClusterError(str(error), "see the list of collections") from None
