"""The collections that a consumer's stream reads: part of its position, and the value of a stream request (dcp 5).

A seqno has a meaning only together with the collections that were read: a reader of two collections up to 900 does not
hold the changes of a third one. So every position carries its coverage, except that of the default collection alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from headwater.errors import OptionError
from headwater.wire.manifest import UID_MAX, CollectionsManifest, ManifestRefused, parse_uid

ALLOWED = (
    'the "collections" of a saved position: {"uid":"hex"} with, for less than the bucket, "scope" or "collections"'
)


@dataclass(frozen=True, slots=True)
class Coverage:
    """The collections that a stream reads. None in place of a Coverage means the default collection, as for clients
    without Collections.

    Args:
        manifest_uid: uid of the manifest in which the names were looked up.
        scope: id of the scope whose collections are read, future ones too; None for no such choice.
        collections: ids of the collections that are read, ascending; None for no such choice.

    Without scope and collections it is the whole bucket, with all its future collections.
    """

    manifest_uid: int = 0
    scope: int | None = None
    collections: tuple[int, ...] | None = None

    @property
    def is_whole(self) -> bool:
        """True if all collections are read."""
        return self.scope is None and self.collections is None

    def same_choice(self, other: Coverage | None) -> bool:
        """Return True if the same collections are read; the manifest in which they were looked up does not matter."""
        return other is not None and replace(other, manifest_uid=self.manifest_uid) == self

    def within(self, manifest: CollectionsManifest) -> Coverage:
        """Return this choice without the collections, chosen by id, that a newer manifest lacks."""
        # An older manifest may lack a collection that was made since; dropping it from the choice would lose it for
        # good.
        if self.collections is None or manifest.uid < self.manifest_uid:
            return self
        return replace(self, collections=tuple(number for number in self.collections if manifest.has(number)))

    def has_gone(self, manifest: CollectionsManifest) -> bool:
        """Return True if a newer manifest lacks the scope or all collections of this choice."""
        if manifest.uid < self.manifest_uid:
            return False
        if self.scope is not None:
            return manifest.scope_by_id(self.scope) is None
        return self.collections is not None and not self.within(manifest).collections

    def as_json(self) -> dict[str, Any]:
        """Return the value of a stream request, as a JSON object."""
        value: dict[str, Any] = {"uid": f"{self.manifest_uid:x}"}
        if self.scope is not None:
            value["scope"] = f"{self.scope:x}"
        if self.collections is not None:
            value["collections"] = [f"{number:x}" for number in self.collections]
        return value

    def encode(self, purge_seqno: int = 0) -> bytes:
        """Return the value of a stream request, encoded.

        Args:
            purge_seqno: the "purge seqno last seen in a V2.2 marker" (dcp 5); 0 for none. With it, a consumer inside
                its first snapshot is not rolled back to 0.
        """
        purge = {"purge_seqno": str(purge_seqno)} if purge_seqno else {}
        return json.dumps(self.as_json() | purge, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, value: Any) -> Coverage:
        """Return the coverage that `as_json` gave.

        Raises:
            OptionError: it is not such an object.
        """
        try:
            if not isinstance(value, dict) or not value.keys() <= {"uid", "scope", "collections"} or len(value) > 2:
                raise ManifestRefused("it is another object")
            scope = parse_uid(value["scope"], "scope") if "scope" in value else None
            ids = value.get("collections")
            collections = None if ids is None else tuple(parse_uid(number, "collection") for number in ids)
            if collections is not None and (not collections or list(collections) != sorted(set(collections))):
                raise ManifestRefused("the ids are not ascending")
            return cls(parse_uid(value.get("uid"), "the manifest", UID_MAX), scope, collections)
        except (ManifestRefused, TypeError):
            raise OptionError("collections", value, ALLOWED) from None

    def described(self, manifest: CollectionsManifest) -> str:
        """Return the choice in words, with the names that a manifest has for it."""
        if self.is_whole:
            return "the whole bucket"
        if self.scope is not None:
            scope = manifest.scope_by_id(self.scope)
            return f"scope {scope.name}" if scope else f"the scope with id 0x{self.scope:x}, which is gone"
        names = manifest.by_id()
        names_known = [
            ".".join(part.name for part in names[number]) if number in names else f"one that is gone (id 0x{number:x})"
            for number in sorted(self.collections or (), key=lambda number: number not in names)
        ]
        return f"collection{'s' * (len(names_known) > 1)} {', '.join(names_known)}"
