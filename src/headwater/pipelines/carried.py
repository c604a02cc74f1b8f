"""The collections of a copy: created at the target as they appear at the source, and dropped there if wanted.

A collection is identified by its id. So a copy notes beside its checkpoint which collection of the source belongs to
which of the target. A collection that was created again under its old name is another one, and its documents must not
meet those of the old one: they have lower revisions, and the conflict rule would leave them out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from headwater.client.collections import parse_path, read_names
from headwater.client.unread import OWN_OF_SERVERS, knows_collections
from headwater.cluster.collections import CollectionPath, Edit, Lacking, additions, change, removals
from headwater.errors import ClusterError, ConnectionLost, OptionError, StatusError
from headwater.pipelines.beside import FileBeside
from headwater.spark.nodes import SourceNodes, connect, patiently
from headwater.spark.settings import SourceSettings, WriteSettings, parse
from headwater.wire.manifest import EMPTY, UID_MAX, CollectionsManifest, ManifestRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Dropped = Literal["keep", "drop"]
"""The fate of the target's collection when that of the source was dropped."""

FILE: Final = "collections.json"
FORMAT: Final = 1


@dataclass
class Carried:
    """The collections that a copy carries; kept beside its checkpoint.

    Args:
        collections, scope: the choice, as options of the source; neither for the default collection alone.
        into: the target's collection, in a copy of a single one; None for the same names.
        manifest_uid: the uid of the newest seen manifest of the source.
        known: the ids of the source's collections, by their names at the target.
        filled: the ids of the target's collections that hold the copies, by name; incomplete in a file of an older
            release.
    """

    collections: str | None = None
    scope: str | None = None
    into: str | None = None
    manifest_uid: int = 0
    known: dict[str, int] = field(default_factory=dict)
    filled: dict[str, int] = field(default_factory=dict)

    @property
    def chooses(self) -> bool:
        """True if the copy has a choice of collections; False for the default collection, read without collections."""
        return self.collections is not None or self.scope is not None

    def collections_of(self, manifest: CollectionsManifest) -> dict[int, tuple[str, str, int | None]]:
        """Return the collections to copy: id to scope, name and maximum TTL."""
        names = None if self.collections is None else read_names(self.collections)
        paths = None if names is None else set(map(parse_path, names))
        return {
            collection.id: (scope.name, collection.name, collection.max_ttl)
            for scope, collection in manifest.each_collection()
            # What servers keep for themselves in a scope of their own means nothing to another cluster.
            if scope.name != OWN_OF_SERVERS
            and (self.scope in (None, scope.name))
            and (paths is None or (scope.name, collection.name) in paths)
        }

    def options(self) -> dict[str, str]:
        """Return the choice, as options of the source."""
        options_ = {"collections": self.collections, "scope": self.scope}
        return {name: text for name, text in options_.items() if text is not None}

    def to_json(self) -> dict[str, Any]:
        """Return the choice as JSON types."""
        return {
            "format": FORMAT,
            "collections": self.collections,
            "scope": self.scope,
            "into": self.into,
            "manifest_uid": f"{self.manifest_uid:x}",
            "known": _hex(self.known),
            "filled": _hex(self.filled),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Carried:
        """Read the result of `to_json`.

        Raises:
            OptionError: it has another form.
        """
        try:
            if content["format"] != FORMAT:
                raise OptionError("checkpoint", content["format"], f"of format {FORMAT}, which this version knows")
            ids = [
                {path: int(number, 16) for path, number in each.items()}
                for each in (content["known"], content.get("filled", {}))
            ]
            return cls(
                content["collections"], content["scope"], content["into"], int(content["manifest_uid"], 16), *ids
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, OptionError):
                raise
            raise OptionError("checkpoint", FILE, "a file of this copy: take another checkpoint") from None


def _hex(ids: Mapping[str, int]) -> dict[str, str]:
    return {path: f"{number:x}" for path, number in sorted(ids.items())}


class CarriedFile:
    """The file beside a checkpoint, on a disk of this machine or where Spark reaches.

    Args:
        checkpoint: the folder.
        spark: a session, for a checkpoint that is not on this machine.
    """

    def __init__(self, checkpoint: str | Path, spark: SparkSession | None = None) -> None:
        self.checkpoint: Final = checkpoint
        self.spark: SparkSession | None = spark
        self.file: Final = FileBeside(checkpoint, FILE, spark)

    def load(self) -> Carried | None:
        """Return the saved choice; None for a new checkpoint.

        A checkpoint with offsets and without the file belongs to a copy from before collections were copied.
        """
        text = self.file.read()
        if text is not None:
            return Carried.from_json(_object(text))
        return Carried() if self.file.has_offsets() else None

    def save(self, carried: Carried) -> None:
        """Replace the saved choice; on return it is on the disk."""
        self.file.write(json.dumps(carried.to_json()))


def _object(text: str) -> Mapping[str, Any]:
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    return content if isinstance(content, dict) else {}


def choice(
    saved_choice: Carried | None, options: Mapping[str, str], into: str | None, source: SourceSettings
) -> Carried:
    """Return the collections of a copy: those that it began with, or those in its options; a new copy without a choice
    has the whole bucket.

    Args:
        saved_choice: the choice beside the checkpoint; None for a new copy.
        options: options of the source.
        into: as of `Carried`.
        source: the nodes that have the manifest.

    Raises:
        OptionError: `into` with more than one collection, or the copy was begun with another choice.
        TransportError, StatusError: no node answers.
    """
    choice_ = Carried(options.get("collections"), options.get("scope"), into)
    if into is not None and (choice_.collections is None or "," in choice_.collections or choice_.collections == "all"):
        raise OptionError(
            "into", into, "given with one name in --collections: keys of several would overwrite each other"
        )
    if saved_choice is None:
        return choice_ if choice_.chooses else replace(choice_, collections=_all_there_is(source))
    if not choice_.chooses:
        return saved_choice
    if choice_.into != saved_choice.into:
        message = f"what the copy with this checkpoint was begun with: {saved_choice.into or 'the same names'}"
        raise OptionError("into", into, message)
    if not _may_follow(saved_choice, choice_, source):
        first_choice = saved_choice.collections or (
            f"scope {saved_choice.scope}" if saved_choice.scope else "the default collection only"
        )
        allowed = f"what the copy with this checkpoint was begun with: {first_choice}"
        allowed += ". Take another checkpoint for another choice"
        raise OptionError("collections", choice_.collections or f"scope {choice_.scope}", allowed)
    return replace(saved_choice, collections=choice_.collections, scope=choice_.scope)


def _may_follow(saved_choice: Carried, choice: Carried, source: SourceSettings) -> bool:
    """Return True if a copy can continue with a choice, which may leave out collections that the source no longer has.

    Offsets refuse any other choice, but only after the batch that Spark repeats after a kill: in that batch the rows of
    a collection that is no longer chosen would be left out, and never come again.
    """
    # A copy that knows no collection yet has copied nothing: it may begin with any choice.
    if choice.options() == saved_choice.options() or (saved_choice.chooses and not saved_choice.known):
        return True
    if (
        saved_choice.scope != choice.scope
        or "all" in (saved_choice.collections, choice.collections)
        or not saved_choice.chooses
    ):
        return False
    with closing(SourceNodes(source)) as nodes:
        manifest = nodes.manifest(UID_MAX)
    if manifest.uid < saved_choice.manifest_uid:
        return False  # nothing is concluded from what is not there
    return saved_choice.collections_of(manifest).keys() == choice.collections_of(manifest).keys()


def _all_there_is(source: SourceSettings) -> str | None:
    def ask() -> str | None:
        with connect(source) as client:
            return "all" if knows_collections(client) else None

    return patiently(ask, source.retry_seconds)


def as_source(target: WriteSettings) -> SourceSettings:
    """Return the target's settings as those of a source."""
    login = {"user": target.user, "password": target.password, "retrySeconds": str(target.retry_seconds)}
    return parse({"url": target.url} | {name: text for name, text in login.items() if text is not None})


class CarriedCollections:
    """The target's collections, kept equal to those of the source; used by the driver.

    Args:
        source, target: the two ends of the copy.
        carried: the choice beside the checkpoint. file: the file to which a newer one is written.
        on_drop: the rule for a collection at the target that was dropped at the source.
        check: raises OptionError if one of the buckets was created anew; called before a collection is dropped.
    """

    def __init__(
        self,
        source: SourceSettings,
        target: WriteSettings,
        carried: Carried,
        file: CarriedFile,
        on_drop: Dropped,
        check: Callable[[], None],
    ) -> None:
        self._source, self._target, self._on_drop = source, target, on_drop
        self.carried: Carried = carried
        self._file = file
        self._check_buckets = check
        self._manifest = EMPTY
        self._source_nodes = SourceNodes(source)
        self._target_nodes = SourceNodes(as_source(target))

    def close(self) -> None:
        """Close the connections."""
        self._source_nodes.close()
        self._target_nodes.close()

    def settle(self) -> tuple[int, ...]:
        """Create the source's present collections at the target, and handle dropped ones; return the ids to copy,
        ascending.

        Raises:
            OptionError: a collection can't be created or dropped at the target; or one was dropped and created again at
                the source, or dropped at the target, and the options have no rule for the documents there.
            TransportError, StatusError: nodes did not answer.
        """
        manifest, target_manifest = self._source_nodes.manifest(UID_MAX), self._target_nodes.manifest(UID_MAX)
        if manifest.uid >= self.carried.manifest_uid and (path := self._to_let_go(manifest, target_manifest)):
            name = path if self.carried.into is None else self.carried.collections or path
            by_hand = f"drop its copy at the target (headwater collection drop {path})"
            manifest = self._source_nodes.manifest_to_drop_by(name, by_hand)
        self._manifest, collections = manifest, self.carried.collections_of(manifest)
        if manifest.uid < self.carried.manifest_uid:
            return tuple(sorted(collections))  # nothing is concluded from what is not there
        source_paths = {self._path(scope, name): number for number, (scope, name, _) in collections.items()}
        # Dropped ones first: a collection that was made again under its name must find none of the old documents.
        target_manifest = self._drop(manifest, source_paths, target_manifest)
        self._check(source_paths, target_manifest)
        lacking = [
            Lacking(CollectionPath(*parse_path(self._path(*collection[:2]))), collection[2])
            for collection in collections.values()
        ]
        lacking = [each for each in lacking if not each.path.is_in(target_manifest)]
        if lacking:
            target_manifest = self._change(additions(lacking), ", ".join(str(each.path) for each in lacking), "made")
        self._note(manifest, source_paths, target_manifest)
        return tuple(sorted(collections))

    def check_left_out(self, ids: Collection[int]) -> None:
        """Check that no changes were left out that must be copied: they never come again.

        `settle` uses the nodes that answer. A collection that they don't know may have been dropped, or created at
        nodes that did not answer then; so this requests the manifests of all nodes whose changes may have come.

        Args:
            ids: the collections whose changes were left out since `settle`.

        Raises:
            ConnectionLost: some were left out; the batch is repeated, and their collections are created first.
            TransportError, StatusError: a node did not answer that may know one of them.
        """
        unknown_ids = [number for number in ids if not self._manifest.has(number)]
        if not unknown_ids:
            return  # they were not chosen, or are a server's own
        manifest = self._source_nodes.manifest_to_drop_by(f"0x{unknown_ids[0]:x}", "begin with another checkpoint")
        if manifest.uid < self.carried.manifest_uid:
            raise ConnectionLost(self._source.url, "no node that answers has the newest manifest of collections")
        late = self.carried.collections_of(manifest).keys() & unknown_ids
        if late:
            names = ", ".join(sorted(f"0x{number:x}" for number in late))
            raise ConnectionLost(self._source.url, f"the nodes that answered at first did not know collection {names}")

    def _path(self, scope: str, name: str) -> str:
        return self.carried.into or f"{scope}.{name}"

    def _dropped_paths(self, manifest: CollectionsManifest) -> list[str]:
        """Return the names at the target of carried collections that the source's manifest no longer has."""
        return [path for path, number in self.carried.known.items() if not manifest.has(number)]

    def _to_let_go(self, manifest: CollectionsManifest, target_manifest: CollectionsManifest) -> str | None:
        """Return the first collection that `_drop` would drop or forget; None if there is none.

        Args:
            manifest: the source's. target_manifest: the target's.
        """
        dropped_paths = self._dropped_paths(manifest)
        keeps = self._on_drop == "keep" and any(self._is_left(path, target_manifest) for path in dropped_paths)
        return dropped_paths[0] if dropped_paths and not keeps else None

    def _drop(
        self, manifest: CollectionsManifest, source_paths: Mapping[str, int], target_manifest: CollectionsManifest
    ) -> CollectionsManifest:
        """Handle collections that were dropped at the source since; return the target's manifest after that.

        Args:
            manifest: the source's.
            source_paths: the ids of the source's collections, by their names at the target.
            target_manifest: the target's manifest.
        """
        dropped_paths = self._dropped_paths(manifest)
        remaining = [
            CollectionPath(*parse_path(path)) for path in dropped_paths if self._is_left(path, target_manifest)
        ]
        if remaining and self._on_drop == "drop":
            self._check_buckets()  # a source that was made anew has none of those of before
            target_manifest = self._change(removals(remaining), ", ".join(map(str, remaining)), "dropped")
        elif recreated := [str(path) for path in remaining if str(path) in source_paths]:
            message = (
                "one to go on with: it was dropped and made again at the source, and documents of before are at the "
            )
            message += f"target; drop it there (headwater collection drop {recreated[0]}), or copy with --dropped drop"
            raise OptionError("dropped", recreated[0], message)
        if self._on_drop == "drop" or not remaining:
            for path in dropped_paths:
                del self.carried.known[path]
                self.carried.filled.pop(path, None)
            if dropped_paths:
                # Behind the drop at the target: a run that is killed in between finds nothing left there, and forgets
                # them here.
                self._file.save(self.carried)
        return target_manifest

    def _is_left(self, path: str, target_manifest: CollectionsManifest) -> bool:
        """Return True if the target still has the very collection of this name that the copy has filled.

        A collection that was created again under the name is another one, with none of the copy's documents.
        """
        present = target_manifest.collection(*parse_path(path))
        return present is not None and self.carried.filled.get(path, present.id) == present.id

    def _check(self, source_paths: Mapping[str, int], target_manifest: CollectionsManifest) -> None:
        """Check that no collection that this copy has filled was dropped at the target, and perhaps created again.

        Raises:
            OptionError: one was; it would lack all earlier documents.
        """
        for path, number in self.carried.known.items():
            if source_paths.get(path) == number and not self._is_left(path, target_manifest):
                message = "at the target any more, though this copy has filled it: begin anew, with another checkpoint"
                if target_manifest.collection(*parse_path(path)) is not None:
                    message = f"{message} (it was dropped and made again there)"
                raise OptionError("target", path, message)

    def _note(
        self, manifest: CollectionsManifest, source_paths: Mapping[str, int], target_manifest: CollectionsManifest
    ) -> None:
        """Save the collections of the copy, before the first document of a new one is written."""
        uid = max(manifest.uid, self.carried.manifest_uid)
        present = {
            path: each.id
            for path in source_paths
            if (each := target_manifest.collection(*parse_path(path))) is not None
        }
        now = replace(
            self.carried,
            manifest_uid=uid,
            known={**self.carried.known, **source_paths},
            filled={**self.carried.filled, **present},
        )
        if now != self.carried:
            self.carried = now
            self._file.save(now)

    def _change(self, edit: Edit, names: str, verb: str) -> CollectionsManifest:
        from headwater.client.routing import parse as parse_url
        from headwater.cluster.members import Members

        url = parse_url(self._target.url)

        async def work() -> CollectionsManifest:
            async with Members(url.bucket, self._target.user, self._target.password, tls=url.tls) as members:
                return await change(members, url.seeds, edit)

        try:
            return asyncio.run(work())
        except (ManifestRefused, ClusterError, StatusError) as error:
            if isinstance(error, StatusError) and error.retriable:
                raise
            message = f"{verb} at the target ({error}): do it there yourself, by headwater collection"
            raise OptionError("collections", names, message) from None
