"""Work on the scopes and collections of a bucket: creating, altering and dropping them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from headwater.cluster.work.buckets import NO_WAY_BACK
from headwater.cluster.work.declared import DeclaredWork, WorkOutcome, WorkPlan, WorkRun
from headwater.errors import OptionError, WorkRefused
from headwater.options import SECONDS, option

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.collections import CollectionPath
    from headwater.cluster.members import Members
    from headwater.wire.manifest import CollectionsManifest

__all__ = ["AlterCollection", "CreateCollection", "DropCollection"]

NAME = "SCOPE or SCOPE.COLLECTION."
TTL_MAX = 2**31 - 1
HISTORY = ("on", "off")
GETS = {"on": "get the old ones", "off": "get the last one alone"}
TTL = f"a whole number of seconds, 1 to {TTL_MAX}, or such as 12h or 30d"


class _OfCollections(DeclaredWork):
    """Work on a scope or a collection by its name."""

    name: str

    @property
    def path(self) -> CollectionPath:
        """The scope or the collection of this work."""
        from headwater.cluster.collections import CollectionPath

        return CollectionPath.parse(self.name)

    @property
    def noun(self) -> str:
        """The kind of the path: "scope" or "collection"."""
        return "collection" if self.path.collection else "scope"


@dataclass(frozen=True)
class CreateCollection(_OfCollections):
    """Make a scope, or a collection and its scope if need be.

    What is there already stays as it is. Ends when it is durable on all nodes.
    """

    KIND: ClassVar[str] = "collection-create"
    HEADING: ClassVar[str] = "Make a collection"
    TITLE: ClassVar[str] = "Make {0.noun} {0.path}"
    EXAMPLES: ClassVar[tuple[str, ...]] = (
        "headwater collection create shop",
        "headwater collection create shop.orders",
        "headwater collection create shop.carts --max-ttl 86400",
    )
    EXITS: ClassVar[Mapping[int, str]] = {1: "the manifest is refused, or a node does not answer"}

    name: str = option(..., NAME, positional=True, metavar="NAME", allowed="a name")
    max_ttl: int | None = option(None, "No document lives longer.", unit=SECONDS, least=1, most=TTL_MAX, allowed=TTL)
    history: str | None = option(
        None, "Whether readers of every version get its old ones; if left out, as its bucket says.", choices=HISTORY
    )

    def __post_init__(self) -> None:
        if self.max_ttl is not None and not self.path.collection:
            raise OptionError("max-ttl", self.max_ttl, "for a scope: it is of a collection; a scope has none")
        if self.history is not None and not self.path.collection:
            raise OptionError("history", self.history, "for a scope: it is of a collection; a scope has none")

    async def plan(self, members: Members, seeds: Sequence[Address]) -> WorkPlan:
        """Return the plan of the new scope or collection."""
        from headwater.cluster.collections import current

        manifest = await current(members, seeds)
        lines = [f"{self.path} is made in this bucket, on all nodes"]
        if self.max_ttl is not None:
            lines.append(f"No document in it lives longer than {self.max_ttl:,} s")
        if self.history is not None:
            lines.append(f"Readers of every version {GETS[self.history]}")
        return WorkPlan(tuple(lines), is_empty=self.path.is_in(manifest))

    async def run(self, members: Members, seeds: Sequence[Address], run: WorkRun) -> WorkOutcome:
        """Create the scope or collection on all nodes."""
        from headwater.cluster.collections import change, creation, default_history
        from headwater.wire.manifest import ManifestRefused

        history = None if self.history is None else self.history == "on"
        try:
            default = history is None and await default_history(members, seeds)
            manifest = await change(members, seeds, creation(self.path, self.max_ttl, history=history, default=default))
        except ManifestRefused as error:
            raise WorkRefused(str(error)) from None
        facts = {"name": str(self.path), "manifest": f"{manifest.uid:x}"}
        return WorkOutcome(f"{self.path} is there; manifest {manifest.uid:x}", facts)


@dataclass(frozen=True)
class AlterCollection(_OfCollections):
    """Give a collection a history, or take it away.

    Readers that ask for every version (`tail --history`) get the old versions of its documents, or of each the last one
    only. How long old versions are kept is of the bucket (`bucket history`). Ends when it is durable on all nodes.
    """

    KIND: ClassVar[str] = "collection-alter"
    HEADING: ClassVar[str] = "Alter a collection"
    TITLE: ClassVar[str] = "Alter collection {0.path}"
    HARMED: ClassVar[str] = "{0.path}"
    EXAMPLES: ClassVar[tuple[str, ...]] = (
        "headwater collection alter shop.carts --history off",
        "headwater collection alter shop.carts --history on",
    )
    EXITS: ClassVar[Mapping[int, str]] = {1: "there is none, or a node does not answer"}
    REMARKS: ClassVar[tuple[str, ...]] = (
        "What was written while a collection had a history stays for readers, as long as its bucket keeps it. A bucket "
        "in which no collection has a history keeps none: its old versions go with the next compaction.",
    )

    name: str = option(..., "SCOPE.COLLECTION.", positional=True, metavar="NAME", allowed="a name")
    history: str = option(..., "Whether readers of every version get its old ones.", choices=HISTORY)

    def __post_init__(self) -> None:
        if not self.path.collection:
            raise OptionError("name", self.name, "a collection, such as shop.carts: a scope has no history")

    async def plan(self, members: Members, seeds: Sequence[Address]) -> WorkPlan:
        """Return the plan of the change; raises WorkRefused for an unknown name."""
        from headwater.cluster.collections import current

        manifest = await current(members, seeds)
        collection = manifest.collection(self.path.scope, self.path.collection)
        if collection is None:
            raise WorkRefused(f"there is no {self.path}", "see headwater collection list")
        line = f"Readers of every version of {self.path} {GETS[self.history]}"
        return WorkPlan((line,), is_empty=collection.history == (self.history == "on"))

    async def run(self, members: Members, seeds: Sequence[Address], run: WorkRun) -> WorkOutcome:
        """Change it on all nodes."""
        from headwater.cluster.collections import alteration, change
        from headwater.wire.manifest import ManifestRefused

        is_kept = self.history == "on"
        try:
            manifest = await change(members, seeds, alteration(self.path, history=is_kept))
        except ManifestRefused as error:
            raise WorkRefused(str(error), "see headwater collection list") from None
        facts = {"name": str(self.path), "manifest": f"{manifest.uid:x}", "history": is_kept}
        history = "a history" if is_kept else "no history"
        return WorkOutcome(f"{self.path} has {history}; manifest {manifest.uid:x}", facts)


@dataclass(frozen=True)
class DropCollection(_OfCollections):
    """Drop a collection, or a scope and all that is in it.

    Its documents are gone for everybody at once; what they took on the disk comes back with the next compaction.
    """

    KIND: ClassVar[str] = "collection-drop"
    HEADING: ClassVar[str] = "Drop a collection"
    TITLE: ClassVar[str] = "Drop {0.noun} {0.path}"
    QUESTION: ClassVar[str] = "Drop {0.path} with all its documents?"
    CONFIRMATION: ClassVar[str] = "{0.path}"
    HARMED: ClassVar[str] = "{bucket}"
    EXAMPLES: ClassVar[tuple[str, ...]] = (
        "headwater collection drop shop --dry-run",
        "headwater collection drop shop.carts --yes",
    )
    EXITS: ClassVar[Mapping[int, str]] = {1: "there is none, or a node does not answer"}
    REMARKS: ClassVar[tuple[str, ...]] = (NO_WAY_BACK,)
    HAS_DRY_RUN: ClassVar[bool] = True
    ASKS: ClassVar[bool] = True
    HARMS: ClassVar[bool] = True

    name: str = option(..., NAME, positional=True, metavar="NAME", allowed="a name")
    force: bool = option(False, "Although other nodes have another name for its id, which is dropped, too.")

    async def plan(self, members: Members, seeds: Sequence[Address]) -> WorkPlan:
        """Return the collections that would be dropped; raises WorkRefused for an unknown name."""
        from headwater.cluster.collections import current, named_anywhere
        from headwater.wire.manifest import ManifestRefused

        try:
            ids = await named_anywhere(members, seeds, self.path) if self.force else {}
        except ManifestRefused as error:
            raise WorkRefused(str(error), "see headwater collection list") from None
        if not self.force:
            manifest = await current(members, seeds)
            if not self.path.is_in(manifest):
                raise WorkRefused(f"there is no {self.path}", "see headwater collection list")
            ids = self._ids(manifest)
        lines = (*ids, f"{self.path} would be dropped with all documents of these")
        return WorkPlan(lines, {"name": str(self.path), "would_drop": list(ids)}, ids=ids)

    def _ids(self, manifest: CollectionsManifest) -> dict[str, str]:
        """Return the ids, as hexadecimal digits, of the collections to be dropped, by name."""
        return {
            f"{scope.name}.{collection.name}": f"{collection.id:x}"
            for scope, collection in manifest.each_collection()
            if scope.name == self.path.scope and self.path.collection in ("", collection.name)
        }

    async def run(self, members: Members, seeds: Sequence[Address], run: WorkRun) -> WorkOutcome:
        """Drop the scope or collection on all nodes; raises WorkRefused if it is not the one that the plan showed."""
        from headwater.cluster.collections import change, drop_everywhere, removal
        from headwater.wire.manifest import ManifestRefused

        problem = f"{self.path} is not what was shown: it, or what is in it, was made anew since"

        def check(manifest: CollectionsManifest) -> None:
            if run.plan is not None and self.path.is_in(manifest) and run.plan.ids != self._ids(manifest):
                raise ManifestRefused(problem)

        def check_ids(ids: Mapping[str, str]) -> None:
            # What is shown and gone by now may be what an earlier try has dropped.
            if run.plan is not None and not ids.items() <= run.plan.ids.items():
                raise ManifestRefused(problem)

        def edit(manifest: CollectionsManifest, ids: tuple[int, int]) -> CollectionsManifest:
            # Checked within the change: another operator's change makes this function run again, with what that one
            # left.
            check(manifest)
            return removal(self.path)(manifest, ids)

        try:
            if self.force:
                manifest = await drop_everywhere(members, seeds, self.path, check_ids)
            else:
                manifest = await change(members, seeds, edit)
        except ManifestRefused as error:
            raise WorkRefused(str(error)) from None
        facts = {"name": str(self.path), "manifest": f"{manifest.uid:x}", "dropped": True}
        return WorkOutcome(f"{self.path} is dropped; manifest {manifest.uid:x}", facts)
