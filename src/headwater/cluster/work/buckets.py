"""Work on buckets: creating and dropping them, and changing their quota or history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from headwater.cluster.work.declared import DeclaredWork, WorkOutcome, WorkPlan, WorkRun
from headwater.counting import several
from headwater.errors import OptionError, WorkRefused
from headwater.options import MIB, SECONDS, option

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.members import Members

__all__ = ["NAME", "CreateBucket", "DropBucket", "SetHistory", "SetQuota"]

NAME = "a name"
NO_WAY_BACK = "There is no way back but a backup."
QUOTA = "How much its files on a node may take, MiB; 0: no limit."


@dataclass(frozen=True)
class CreateBucket(DeclaredWork):
    """Make a bucket.

    On a cluster each node gets it, and its vbuckets are dealt out. Over its quota a bucket refuses documents as on a
    full disk, and goes on once deletions and compaction made room.
    """

    KIND: ClassVar[str] = "bucket-create"
    HEADING: ClassVar[str] = "Make a bucket"
    TITLE: ClassVar[str] = "Make bucket {0.name}"
    EXAMPLES: ClassVar[tuple[str, ...]] = (
        "headwater bucket create orders",
        "headwater bucket create carts --vbuckets 64 --quota-mib 2048",
    )
    EXITS: ClassVar[Mapping[int, str]] = {1: "there is one with other vbuckets, or a node does not answer"}

    name: str = option(..., "The bucket.", positional=True, metavar="NAME", allowed=NAME)
    vbuckets: int | None = option(None, "A power of two, up to 1024; as the first bucket.", metavar="N", least=1)
    quota_mib: int = option(0, QUOTA, unit=MIB, least=0)
    replicas: int | None = option(
        None, "Of each vbucket of a cluster; as the first bucket.", metavar="N", least=0, most=3
    )

    async def plan(self, members: Members, seeds: Sequence[Address]) -> WorkPlan:
        """Return the plan of the new bucket; raises OptionError if it exists."""
        from headwater.cluster.buckets import names

        if self.name in (bucket_names := await names(members, seeds)):
            raise OptionError("bucket", self.name, f"none of {', '.join(bucket_names)}, which are there")
        room = f"{self.quota_mib:,} MiB on each node" if self.quota_mib else "as much as the disk has"
        many = "as many vbuckets as the first bucket" if self.vbuckets is None else f"{self.vbuckets} vbuckets"
        return WorkPlan((f"Bucket {self.name} is made on all nodes, with {many}", f"It may take {room}"))

    async def run(self, members: Members, seeds: Sequence[Address], run: WorkRun) -> WorkOutcome:
        """Create the bucket on all nodes."""
        from headwater.cluster.buckets import BucketWish, create

        wish = BucketWish(self.name, self.vbuckets, self.quota_mib, self.replicas)
        nodes = await create(members, seeds, wish)
        return WorkOutcome(f"{self.name} is there, on {several(nodes, 'node')}", {"name": self.name, "nodes": nodes})


@dataclass(frozen=True)
class DropBucket(DeclaredWork):
    """Drop a bucket and all that is in it, on all nodes.

    Its clients are disconnected, and its files removed. Nothing brings it back.
    """

    KIND: ClassVar[str] = "bucket-drop"
    HEADING: ClassVar[str] = "Drop a bucket"
    TITLE: ClassVar[str] = "Drop bucket {0.name}"
    QUESTION: ClassVar[str] = "{0.title} with all its documents?"
    CONFIRMATION: ClassVar[str] = "{0.name}"
    HARMED: ClassVar[str] = "{0.name}"
    EXAMPLES: ClassVar[tuple[str, ...]] = ("headwater bucket drop carts --dry-run", "headwater bucket drop carts --yes")
    EXITS: ClassVar[Mapping[int, str]] = {1: "there is none, it is the first, or a node does not answer"}
    REMARKS: ClassVar[tuple[str, ...]] = (NO_WAY_BACK,)
    HAS_DRY_RUN: ClassVar[bool] = True
    ASKS: ClassVar[bool] = True
    HARMS: ClassVar[bool] = True

    name: str = option(..., "The bucket.", positional=True, metavar="NAME", allowed=NAME)

    async def plan(self, members: Members, seeds: Sequence[Address]) -> WorkPlan:
        """Return a plan that names the bucket; raises WorkRefused for an unknown bucket, or the node's first."""
        from headwater.cluster.buckets import names

        bucket_names = await names(members, seeds)
        if self.name not in bucket_names:
            raise WorkRefused(f"there is no bucket {self.name}", "see headwater bucket list")
        if self.name == bucket_names[0]:
            folder = "it is the folder of the node, where users and the other buckets are kept as well"
            raise WorkRefused(
                f"{self.name} is the first bucket: {folder}",
                "to empty it: flush_all; to be rid of it: serve another folder",
            )
        return WorkPlan(
            (f"{self.name} would be dropped, with all its documents",), {"name": self.name, "dropped": False}
        )

    async def run(self, members: Members, seeds: Sequence[Address], run: WorkRun) -> WorkOutcome:
        """Drop the bucket on all nodes."""
        from headwater.cluster.buckets import drop

        nodes = await drop(members, seeds, self.name)
        facts = {"name": self.name, "nodes": nodes, "dropped": True}
        return WorkOutcome(f"{self.name} is dropped, on {several(nodes, 'node')}", facts)


@dataclass(frozen=True)
class SetQuota(DeclaredWork):
    """Change the quota of a bucket, or print it.

    It is in force at once, on all nodes. One that is less than the bucket's files take already is refused: delete
    documents, drop collections, compact. Over its quota a bucket refuses documents as on a full disk.
    """

    KIND: ClassVar[str] = "bucket-quota"
    HEADING: ClassVar[str] = "Change a quota"
    HARMED: ClassVar[str] = "{0.name}"
    EXAMPLES: ClassVar[tuple[str, ...]] = ("headwater bucket quota carts", "headwater bucket quota carts 4096")
    EXITS: ClassVar[Mapping[int, str]] = {
        1: "there is none, it is the first, its files take more, or a node does not answer"
    }
    REMARKS: ClassVar[tuple[str, ...]] = (
        "Over its quota a bucket refuses documents as on a full disk. Less than its files take already is refused.",
    )

    name: str = option(..., "The bucket.", positional=True, metavar="NAME", allowed=NAME)
    quota_mib: int | None = option(None, QUOTA, positional=True, unit=MIB, least=0)

    @property
    def title(self) -> str:
        """The work in a few words."""
        return f"Quota of bucket {self.name}: {_room(self.quota_mib or 0, ',')}"

    async def plan(self, members: Members, seeds: Sequence[Address]) -> WorkPlan:
        """Return each node's quota before and after the change."""
        from headwater.cluster.buckets import quotas

        before = await quotas(members, seeds, self.name)
        new = "" if self.quota_mib is None else _room(self.quota_mib, ",")
        rows = tuple((str(node), _room(mib, ","), new) for node, mib in before.items())
        is_empty = self.quota_mib is None or set(before.values()) == {self.quota_mib}
        return WorkPlan(heading=("node", "may take", "then"), rows=rows, is_empty=is_empty)

    async def run(self, members: Members, seeds: Sequence[Address], run: WorkRun) -> WorkOutcome:
        """Set the quota on all nodes; without one, return that of each."""
        from headwater.cluster.buckets import quotas, set_quota

        if self.quota_mib is None:
            by_node = {str(node): mib for node, mib in (await quotas(members, seeds, self.name)).items()}
            lines = "\n".join(f"{node}: {_room(mib)}" for node, mib in by_node.items())
            return WorkOutcome(lines, {"name": self.name, "quota_mib": by_node}, is_answer=True)
        nodes = await set_quota(members, seeds, self.name, self.quota_mib)
        facts = {"name": self.name, "quota_mib": self.quota_mib, "nodes": nodes}
        return WorkOutcome(f"{self.name} may take {_room(self.quota_mib)}, on {several(nodes, 'node')}", facts)


def _room(mib: int, form: str = "") -> str:
    return f"{mib:{form}} MiB" if mib else "the disk"


@dataclass(frozen=True)
class SetHistory(DeclaredWork):
    """Change how far back a bucket keeps old versions of documents, or print it.

    Readers that ask for every version (`tail --history`) get those of collections with a history. With both limits the
    shorter history counts. It is in force at once, on all nodes; what is not given stays. A full disk keeps no old
    versions.
    """

    KIND: ClassVar[str] = "bucket-history"
    HEADING: ClassVar[str] = "Change a history"
    HARMED: ClassVar[str] = "{0.name}"
    EXAMPLES: ClassVar[tuple[str, ...]] = (
        "headwater bucket history carts",
        "headwater bucket history carts --seconds 7d --mib 20GiB",
        "headwater bucket history carts --seconds 0 --mib 0",
        "headwater bucket history carts --collections off",
    )
    EXITS: ClassVar[Mapping[int, str]] = {1: "there is none, a limit is out of bounds, or a node does not answer"}
    REMARKS: ClassVar[tuple[str, ...]] = ("What a shorter history leaves out is gone with the next compaction.",)

    name: str = option(..., "The bucket.", positional=True, metavar="NAME", allowed=NAME)
    seconds: int | None = option(
        None, "How old an old version may become; 0: as old as it likes.", unit=SECONDS, least=0
    )
    mib: int | None = option(
        None, "How much old versions of the whole bucket may take; 0: as much as they like.", unit=MIB, least=0
    )
    collections: str | None = option(
        None, "Whether a collection that is made from now on has a history.", choices=("on", "off")
    )

    @property
    def title(self) -> str:
        """The work in a few words."""
        return f"History of bucket {self.name}"

    @property
    def _bytes(self) -> int | None:
        return None if self.mib is None else self.mib << 20

    @property
    def _asks(self) -> bool:
        return self.seconds is None and self.mib is None and self.collections is None

    async def plan(self, members: Members, seeds: Sequence[Address]) -> WorkPlan:
        """Return each node's history before and after the change."""
        before = await self._histories_by_node(members, seeds)
        new = {node: self._history_after(*history) for node, history in before.items()}
        rows = tuple((str(node), _history(*history), _history(*new[node])) for node, history in before.items())
        return WorkPlan(heading=("node", "keeps", "then"), rows=rows, is_empty=new == before)

    async def _histories_by_node(
        self, members: Members, seeds: Sequence[Address]
    ) -> dict[Address, tuple[int, int, bool]]:
        """Return each node's seconds, bytes, and whether new collections have a history."""
        from headwater.cluster.buckets import collections_have_history, histories

        limits_by_node = await histories(members, seeds, self.name)
        defaults = await collections_have_history(members, seeds, self.name)
        return {node: (*limits, defaults.get(node, True)) for node, limits in limits_by_node.items()}

    def _history_after(self, seconds: int, size: int, default: bool) -> tuple[int, int, bool]:
        return (
            seconds if self.seconds is None else self.seconds,
            size if self._bytes is None else self._bytes,
            default if self.collections is None else self.collections == "on",
        )

    async def run(self, members: Members, seeds: Sequence[Address], run: WorkRun) -> WorkOutcome:
        """Set the history on all nodes; without a limit, return that of each."""
        from headwater.cluster.buckets import give_collections_history, keep_history

        if self.seconds is not None or self.mib is not None:
            await keep_history(members, seeds, self.name, self.seconds, self._bytes)
        if self.collections is not None:
            await give_collections_history(members, seeds, self.name, history=self.collections == "on")
        by_node = await self._histories_by_node(members, seeds)
        lines = "\n".join(f"{node}: {_history(*history)}" for node, history in by_node.items())
        facts = {
            str(node): {"seconds": seconds, "bytes": size, "collections": default}
            for node, (seconds, size, default) in by_node.items()
        }
        if self._asks:
            return WorkOutcome(lines, {"name": self.name, "history": facts}, is_answer=True)
        history = next(iter(by_node.values()))
        line = f"{self.name} keeps {_history(*history)}, on {several(len(by_node), 'node')}"
        return WorkOutcome(line, {"name": self.name, "history": facts})


def _history(seconds: int, size: int, default: bool) -> str:
    """Return a history in words."""
    parts = [f"{seconds} s" * bool(seconds), f"{size / (1 << 20):g} MiB" * bool(size)]
    text = " and at most ".join(filter(None, parts)) or "what compaction leaves"
    return text if default else f"{text}; new collections have no history"
