"""Scopes and collections of a bucket on one node or several: all nodes get the same manifest.

The newest manifest that any node knows is changed, and new ids are above all that any node ever used. The first member
of the map decides: it gets the manifest before the others, so of two operators at once one is refused there, looks
again and continues from the other's manifest. Otherwise each node would accept the manifest that comes first, and an id
would have two names for good. Then the others get the manifest. A node that can't accept the manifest lacks the change
until the call is repeated, or until a vbucket brings the change; such a node contradicts nothing.

Nodes that contradict each other all the same are brought together by the next change (manifests.py).

Source: kv.md 4.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from headwater.cluster.known import bucket_nodes
from headwater.cluster.manifests import NodeManifest, together
from headwater.errors import ClusterError, StatusError
from headwater.protocol.one_bucket import contradiction, is_alike, only_in, why_not_from
from headwater.wire.manifest import DEFAULT, EMPTY, CollectionsManifest, ManifestRefused, NoSuchName
from headwater.wire.status import Status
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.admin import NodeAdmin
    from headwater.cluster.members import Members

ATTEMPTS_MAX = 10
"""The most attempts at a change: at each of them another operator may be first."""
_OUTRUN = (Status.ERANGE, Status.CANNOT_APPLY_COLLECTIONS_MANIFEST)

Edit: TypeAlias = "Callable[[CollectionsManifest, tuple[int, int]], CollectionsManifest]"
"""A function from the present manifest and the lowest free ids (of a collection, of a scope) to the next manifest."""


@dataclass(frozen=True, slots=True)
class CollectionPath:
    """A scope, or one of its collections; `collection` is empty for the scope itself."""

    scope: str
    collection: str = ""

    @classmethod
    def parse(cls, text: str) -> CollectionPath:
        """Read `scope` or `scope.collection`."""
        scope, dot, collection = text.partition(".")
        return cls(scope or DEFAULT, collection or (DEFAULT if dot else ""))

    def is_in(self, manifest: CollectionsManifest) -> bool:
        """Return True if a manifest has this scope or collection."""
        if not self.collection:
            return manifest.scope(self.scope) is not None
        return manifest.collection(self.scope, self.collection) is not None

    def __str__(self) -> str:
        return f"{self.scope}.{self.collection}" if self.collection else self.scope


@dataclass(frozen=True, slots=True)
class Lacking:
    """A missing scope or collection of a bucket.

    Attributes:
        max_ttl: the longest life of a document, in seconds; None for no limit.
        history: True if readers of every version get the old versions of its documents; None for the bucket's default.
    """

    path: CollectionPath
    max_ttl: int | None = None
    history: bool | None = None


def creation(
    path: CollectionPath, max_ttl: int | None = None, *, history: bool | None = None, default: bool = True
) -> Edit:
    """Return the edit that makes a scope, or a collection and, if missing, its scope; existing ones stay as they are.

    The edit raises ManifestRefused if the collection exists with another `max_ttl`, or another `history` than a given
    one.

    Args:
        max_ttl: the longest life of a document of a new collection, in seconds; None for no limit.
        history: True if a new collection has a history; None for `default`, which is the bucket's setting.
    """

    def edit(manifest: CollectionsManifest, ids: tuple[int, int]) -> CollectionsManifest:
        manifest_with_scope = manifest if manifest.scope(path.scope) else manifest.with_scope(path.scope, ids[1])
        if not path.collection:
            return manifest_with_scope
        if collection := manifest_with_scope.collection(path.scope, path.collection):
            if collection.max_ttl != max_ttl:
                raise ManifestRefused(
                    f"{path} is there, with a maximum TTL of {collection.max_ttl or 'its own'} seconds"
                )
            if history is not None and collection.history != history:
                raise ManifestRefused(
                    f"{path} is there, {_with(collection.history)} history: headwater collection alter"
                )
            return manifest_with_scope
        has_history = default if history is None else history
        return manifest_with_scope.with_collection(path.scope, path.collection, max_ttl, ids[0], history=has_history)

    return edit


def _with(history: bool) -> str:
    return "with a" if history else "without a"


def alteration(path: CollectionPath, *, history: bool) -> Edit:
    """Return the edit that gives a collection a history, or takes it away."""
    return lambda manifest, _: manifest.with_history(path.scope, path.collection, history=history)


def additions(missing_collections: Sequence[Lacking], *, history: bool = True) -> Edit:
    """Return the edit that makes all missing scopes and collections of a list. `history` is the bucket's default."""

    def edit(manifest: CollectionsManifest, ids: tuple[int, int]) -> CollectionsManifest:
        collection_id, scope_id = ids
        for collection in missing_collections:
            path = collection.path
            if manifest.scope(path.scope) is None:
                manifest, scope_id = manifest.with_scope(path.scope, scope_id), scope_id + 1
            if not path.is_in(manifest):
                has_history = history if collection.history is None else collection.history
                manifest = manifest.with_collection(
                    path.scope, path.collection, collection.max_ttl, collection_id, history=has_history
                )
                collection_id += 1
        return manifest

    return edit


def removals(paths: Sequence[CollectionPath]) -> Edit:
    """Return the edit that drops the scopes and collections of a list; those that are gone already are passed over."""

    def edit(manifest: CollectionsManifest, _: tuple[int, int]) -> CollectionsManifest:
        for path in paths:
            if path.is_in(manifest):
                manifest = removal(path)(manifest, _)
        return manifest

    return edit


def removal(path: CollectionPath) -> Edit:
    """Return the edit that drops a collection, or a scope with its collections."""
    if path.collection:
        return lambda manifest, _: manifest.without_collection(path.scope, path.collection)
    return lambda manifest, _: manifest.without_scope(path.scope)


async def make(
    members: Members, seeds: Sequence[Address], missing_collections: Sequence[Lacking]
) -> CollectionsManifest:
    """Make the missing scopes and collections of a bucket, on all of its nodes at once; errors as `change`."""
    return await change(members, seeds, additions(missing_collections, history=await default_history(members, seeds)))


async def default_history(members: Members, seeds: Sequence[Address]) -> bool:
    """Return the bucket's default: True if a new collection has a history unless its creation says otherwise."""
    nodes = await bucket_nodes(members, seeds)
    return await members.admin(nodes[0]).collections_have_history() is not False


async def current(members: Members, seeds: Sequence[Address]) -> CollectionsManifest:
    """Return the newest manifest of the nodes that `seeds` lead to."""
    manifests = await asyncio.gather(*(members.admin(node).manifest() for node in await bucket_nodes(members, seeds)))
    return max(manifests, key=lambda each: each.uid)


async def change(members: Members, seeds: Sequence[Address], edit: Edit) -> CollectionsManifest:
    """Change the manifest on all nodes that `seeds` lead to; on return it is durable on each.

    Raises:
        ManifestRefused: the change is not allowed.
        ClusterError: nodes contradict each other, or the first refuses: nothing was changed. Or some of the others did
            not accept it; repeat the call to continue.
        TransportError, StatusError: a node did not answer the first request; nothing was changed.
    """

    def edited(answers: Sequence[NodeManifest]) -> CollectionsManifest:
        newest, ids = together(answers), _free_ids(answers)
        try:
            return edit(newest, ids)
        except NoSuchName:
            if not any(_is_edited(edit, answer.manifest, ids) for answer in answers):
                raise
            return newest  # it was dropped before, on some of the nodes alone

    return await _change(members, seeds, edited)


def _is_edited(edit: Edit, manifest: CollectionsManifest, ids: tuple[int, int]) -> bool:
    """Return True if a node with this manifest has the scope or collection that an edit changes."""
    try:
        edit(manifest, ids)
    except ManifestRefused:
        return False
    return True


async def named_anywhere(members: Members, seeds: Sequence[Address], path: CollectionPath) -> dict[str, str]:
    """Return the collections that `drop_everywhere` would drop: their ids, as hexadecimal digits, by "NAME ID".

    An id appears with each name that a node has for it, and a name with each of its ids. Errors as `drop_everywhere`.
    """
    manifests = await _manifests_of(members, await bucket_nodes(members, seeds))
    return _named_ids(manifests, _ids_anywhere(manifests, path)[0])


async def drop_everywhere(
    members: Members,
    seeds: Sequence[Address],
    path: CollectionPath,
    check: Callable[[Mapping[str, str]], None] = lambda ids: None,
) -> CollectionsManifest:
    """Drop the collection or scope that has this name on any node, by its id: also under another name on other nodes.

    Args:
        check: called with the collections to drop, as `named_anywhere` returns them; refuses them by an error.

    Raises: as `change`; ManifestRefused: no node has it.
    """

    def dropped(manifests: Sequence[NodeManifest]) -> CollectionsManifest:
        collections, scopes = _ids_anywhere(manifests, path)
        # Within the change: if another operator's change comes first, this is called again, with what that one left.
        check(_named_ids(manifests, collections))
        return together(manifests, collections, scopes)

    return await _change(members, seeds, dropped)


def _ids_anywhere(manifests: Sequence[NodeManifest], path: CollectionPath) -> tuple[set[int], set[int]]:
    """Return the ids of the collections and scopes that have this name on any node."""
    collections, scopes = set[int](), set[int]()
    for manifest in manifests:
        of_scope = [
            (scope, collection) for scope, collection in manifest.manifest.each_collection() if scope.name == path.scope
        ]
        collections |= {collection.id for _, collection in of_scope if path.collection in ("", collection.name)}
        if not path.collection and (scope := manifest.manifest.scope(path.scope)) is not None:
            scopes.add(scope.id)
    if not collections and not scopes:
        raise NoSuchName(f"there is no {path}")
    # The `_default` scope always exists; only its `_default` collection may be dropped (kv 4).
    if 0 in scopes:
        raise ManifestRefused("Deleting the _default scope is not allowed")
    return collections, scopes


def _named_ids(manifests: Sequence[NodeManifest], ids: Container[int]) -> dict[str, str]:
    names = {
        (f"{scope.name}.{collection.name}", collection.id)
        for listed_manifest in manifests
        for scope, collection in listed_manifest.manifest.each_collection()
        if collection.id in ids
    }
    return {f"{name} {number:x}": f"{number:x}" for name, number in sorted(names)}


async def _change(
    members: Members, seeds: Sequence[Address], make_next: Callable[[Sequence[NodeManifest]], CollectionsManifest]
) -> CollectionsManifest:
    for attempt in itertools.count(1):
        nodes = await bucket_nodes(members, seeds)
        manifest = make_next(await _manifests_of(members, nodes))
        manifest.check()
        await _refuse_older(members, nodes, manifest)
        try:
            await members.admin(nodes[0]).set_manifest(manifest)
            break
        except StatusError as error:  # another operator was first: then there is more to know now
            if error.status not in _OUTRUN or attempt == ATTEMPTS_MAX:
                raise ClusterError(f"{nodes[0]}: {error}", "nothing was changed; type the same again") from error
    other_nodes = nodes[1:]
    # All others are tried: one that is away must not keep the rest from knowing what the first node serves already.
    results = await asyncio.gather(
        *(_send_manifest(members.admin(node), manifest) for node in other_nodes), return_exceptions=True
    )
    refusals = [f"{node}: {result}" for node, result in zip(other_nodes, results, strict=True) if result is not None]
    if refusals:
        raise ClusterError(f"manifest {manifest.uid:x} is not everywhere: {'; '.join(refusals)}", "type the same again")
    return manifest


async def _refuse_older(members: Members, nodes: Sequence[Address], manifest: CollectionsManifest) -> None:
    """Refuse a manifest with a collection without a history if a node of an older release would give it one."""
    plain = [
        f"{scope.name}.{collection.name}" for scope, collection in manifest.each_collection() if not collection.history
    ]
    if not plain:
        return
    defaults = await asyncio.gather(*(members.admin(node).collections_have_history() for node in nodes))
    if older := [str(node) for node, default in zip(nodes, defaults, strict=True) if default is None]:
        raise ClusterError(
            f"{', '.join(older)} can't know that {plain[0]} has no history: it is of an older release",
            "nothing was changed; upgrade it, or let each collection have a history (headwater collection alter)",
        )


async def refuse_older(members: Members, seeds: Sequence[Address], joining: Sequence[Address]) -> None:
    """Refuse joining nodes of an older release if a collection of the cluster has no history.

    Such a node would read that the collection has one, and would keep that for good in each vbucket that it gets.

    Raises:
        ClusterError: a node is of an older release.
        TransportError, StatusError: a node does not answer, or refused.
    """
    if joining:
        await _refuse_older(members, joining, await current(members, seeds))


async def _send_manifest(node: NodeAdmin, manifest: CollectionsManifest) -> None:
    """Send a node the manifest that the first node accepted; a node that has a later manifest with this change needs
    none.
    """
    try:
        await node.set_manifest(manifest)
    except StatusError as error:
        if error.status != Status.ERANGE:
            raise
        node_manifest = await node.manifest()
        is_another = node_manifest.uid == manifest.uid and not is_alike(manifest, node_manifest)
        if node_manifest.uid < manifest.uid or is_another or contradiction(manifest, node_manifest):
            raise


async def _manifests_of(members: Members, nodes: Sequence[Address]) -> list[NodeManifest]:
    async def manifest_of(node: Address) -> NodeManifest:
        manifest, ids = await asyncio.gather(members.admin(node).manifest(), members.admin(node).next_ids())
        return NodeManifest(node, manifest, *ids)

    return list(await asyncio.gather(*map(manifest_of, nodes)))


def _free_ids(manifests: Sequence[NodeManifest]) -> tuple[int, int]:
    return max(manifest.next_collection for manifest in manifests), max(manifest.next_scope for manifest in manifests)


async def refuse_strangers(source: NodeAdmin, target: NodeAdmin) -> None:
    """Check that vbuckets of one node may go to another (protocol/one_bucket.py).

    Raises:
        ClusterError: this would drop documents, or put them into a collection of another name.
        TransportError, StatusError: a node did not answer.
    """
    source_manifest, target_manifest = await asyncio.gather(_manifest_of(source), _manifest_of(target))
    problem = why_not_from(source_manifest, target_manifest)
    # Of two manifests a node goes by the newer: the target would drop what that one lacks, with its documents.
    missing_names = (
        only_in(target_manifest, source_manifest)
        if target_manifest.uid and source_manifest.uid > target_manifest.uid
        else ""
    )
    if missing_names and not problem and State.ACTIVE in (await target.states()).values():
        problem = f"{source.address} has a newer manifest, so {missing_names} would be dropped at {target.address}"
    if problem:
        raise _of_two_buckets(source.address, target.address, problem)


async def refuse_foreign(members: Sequence[NodeAdmin], joining: Sequence[NodeAdmin] = ()) -> None:
    """Check that vbuckets may go between the members of a cluster, and to nodes that join it.

    A member may be behind: it was away when the manifest changed, and will learn it. A joining node may have a newer
    manifest, unless that drops collections of the cluster; it has no documents of its own to lose.

    Raises:
        ClusterError, TransportError, StatusError: as `refuse_strangers`.
    """
    manifests = await asyncio.gather(*map(_manifest_of, (*members, *joining)))
    manifests_by_node = list(zip([node.address for node in (*members, *joining)], manifests, strict=True))
    for (first, first_manifest), (second, manifest) in itertools.combinations(manifests_by_node, 2):
        # Uid 0 is the manifest that each bucket begins with, before anybody decided anything: it binds nobody.
        if problem := contradiction(first_manifest, manifest) if first_manifest.uid and manifest.uid else "":
            raise _of_two_buckets(first, second, problem)
    owner, newest = max(manifests_by_node[: len(members)], key=lambda each: each[1].uid)
    for node, manifest in manifests_by_node[len(members) :]:
        if problem := why_not_from(newest, manifest):
            raise _of_two_buckets(owner, node, problem)


async def refuse_joining(
    members: Sequence[NodeAdmin], joining: Sequence[NodeAdmin], former: Container[Address] = ()
) -> None:
    """Check that the members of a cluster are of one bucket, and that joining nodes can take its collections.

    A node that was failed over may know changes that the cluster never learned, and may have used an id that the
    cluster has used for another collection since. It has no documents of its own to lose: its copies are rolled back to
    the point where the histories parted. It gets the manifest of the cluster before it joins (`send_newer_manifest`).

    Args:
        former: joining nodes that were members of this cluster; of any other node no id may have another name here.

    Raises: as `refuse_strangers`.
    """
    await refuse_foreign(members)
    manifests = await asyncio.gather(*map(_manifest_of, (*members, *joining)))
    newest = max(manifests[: len(members)], key=lambda each: each.uid)
    owner = members[list(manifests).index(newest)].address
    # Judged as `send_newer_manifest` sends it: of two manifests the newer one counts, then the cluster's.
    uid = max(manifest.uid for manifest in manifests) + 1
    for node, node_manifest in zip(joining, manifests[len(members) :], strict=True):
        is_bound = node_manifest.uid and node.address not in former
        if problem := contradiction(replace(newest, uid=uid), node_manifest) if is_bound else "":
            raise _of_two_buckets(owner, node.address, problem)


async def send_newer_manifest(members: Members, seeds: Sequence[Address], joining: Sequence[Address]) -> None:
    """Send joining nodes the manifest of the cluster, after raising its uid above theirs.

    A node goes by the newer of two manifests. By its own, a node that had dropped a collection before it was failed
    over would drop that collection again in each vbucket that it comes to own.

    Raises:
        ClusterError, TransportError, StatusError: a node did not accept it; no node joined, and the call may be
            repeated.
    """
    manifests = await asyncio.gather(*(_manifest_of(members.admin(node)) for node in joining))
    foreign = {node: node_manifest for node, node_manifest in zip(joining, manifests, strict=True) if node_manifest.uid}
    if not foreign:
        return
    newest = await current(members, seeds)
    differing = {node: node_manifest for node, node_manifest in foreign.items() if not is_alike(node_manifest, newest)}
    highest = max((manifest_.uid for manifest_ in differing.values()), default=0)
    # One above the highest is left free: `_in_both` takes it for the step in between.
    if differing and highest + 1 >= newest.uid:
        newest = await _change(members, seeds, lambda answers: _with_higher_uid(together(answers), highest + 1))
    for node, node_manifest in differing.items():
        if contradiction(node_manifest, newest):  # an id is given up before it gets its other name
            await members.admin(node).set_manifest(_in_both(node_manifest, newest))
        await members.admin(node).set_manifest(newest)


def _with_higher_uid(manifest: CollectionsManifest, uid: int) -> CollectionsManifest:
    return manifest if manifest.uid > uid else replace(manifest, uid=uid + 1)


def _in_both(node_manifest: CollectionsManifest, newest: CollectionsManifest) -> CollectionsManifest:
    """Return the manifest that follows `node_manifest`, with only those scopes and collections that `newest` has
    under the same id and name.
    """
    newest_scopes = {(scope.id, scope.name) for scope in newest.scopes}
    newest_collections = {(scope.id, collection) for scope, collection in newest.each_collection()}
    return CollectionsManifest(
        node_manifest.uid + 1,
        tuple(
            replace(
                scope,
                collections=tuple(
                    collection for collection in scope.collections if (scope.id, collection) in newest_collections
                ),
            )
            for scope in node_manifest.scopes
            if (scope.id, scope.name) in newest_scopes
        ),
    )


def _of_two_buckets(first: Address, second: Address, problem: str) -> ClusterError:
    message = f"collections of {first} and {second} are not of one bucket: {problem}"
    return ClusterError(
        message,
        "see headwater collection list of both, and drop what is not needed; members come together by the next change",
    )


async def _manifest_of(node: NodeAdmin) -> CollectionsManifest:
    """Return the manifest of a node; EMPTY if the node does not support collections."""
    try:
        return await node.manifest()
    except StatusError as error:
        if error.status not in (Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED):
            raise
        return EMPTY
