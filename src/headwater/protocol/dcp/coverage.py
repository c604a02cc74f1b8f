"""Which collections a history was read with: part of a position, and the value of a stream request (dcp 5).

A seqno says what is held only together with what was asked for: who read two collections up to 900 does not hold what
the third had until then. So a position that is not of the default collection alone carries its coverage.
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
    """The collections that are read; None in the place of one of these: the default collection, as by any old client.

    Args:
        manifest_uid: of the manifest in which the names were looked up.
        scope: the id of the scope whose collections are read, future ones too; None for no such choice.
        collections: the ids of those that are read, ascending; None for no such choice.

    With neither it is the whole bucket, whatever collections it will have.
    """

    manifest_uid: int = 0
    scope: int | None = None
    collections: tuple[int, ...] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all collections are read."""
        return self.scope is None and self.collections is None

    def same_choice(self, other: Coverage | None) -> bool:
        """Whether the same is read; by which manifest it was found does not matter."""
        return other is not None and replace(other, manifest_uid=self.manifest_uid) == self

    def within(self, manifest: CollectionsManifest) -> Coverage:
        """The rest of this choice: collections by id without those that a newer manifest does not have."""
        if self.collections is None or manifest.uid < self.manifest_uid:
            return self
        return replace(self, collections=tuple(number for number in self.collections if manifest.has(number)))

    def has_gone(self, manifest: CollectionsManifest) -> bool:
        """Whether by a newer manifest nothing of this choice is left."""
        if manifest.uid < self.manifest_uid:
            return False
        if self.scope is not None:
            return manifest.scope_by_id(self.scope) is None
        return self.collections is not None and not self.within(manifest).collections

    def as_json(self) -> dict[str, Any]:
        """The value of a stream request, as the object that JSON writes."""
        told: dict[str, Any] = {"uid": f"{self.manifest_uid:x}"}
        if self.scope is not None:
            told["scope"] = f"{self.scope:x}"
        if self.collections is not None:
            told["collections"] = [f"{number:x}" for number in self.collections]
        return told

    def encode(self) -> bytes:
        """The value of a stream request."""
        return json.dumps(self.as_json(), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, told: Any) -> Coverage:
        """Read what `as_json` made.

        Raises:
            OptionError: it is no such thing.
        """
        try:
            if not isinstance(told, dict) or not told.keys() <= {"uid", "scope", "collections"} or len(told) > 2:
                raise ManifestRefused("it is another object")
            scope = parse_uid(told["scope"], "scope") if "scope" in told else None
            ids = told.get("collections")
            collections = None if ids is None else tuple(parse_uid(each, "collection") for each in ids)
            if collections is not None and (not collections or list(collections) != sorted(set(collections))):
                raise ManifestRefused("the ids are not ascending")
            return cls(parse_uid(told.get("uid"), "the manifest", UID_MAX), scope, collections)
        except (ManifestRefused, TypeError):
            raise OptionError("collections", told, ALLOWED) from None

    def described(self, manifest: CollectionsManifest) -> str:
        """The choice in words, by the names that a manifest has for it."""
        if self.is_whole:
            return "the whole bucket"
        if self.scope is not None:
            found = manifest.scope_by_id(self.scope)
            return f"scope {found.name}" if found else f"the scope with id 0x{self.scope:x}, which is gone"
        names = manifest.by_id()
        told = [
            ".".join(part.name for part in names[number]) if number in names else f"one that is gone (id 0x{number:x})"
            for number in sorted(self.collections or (), key=lambda number: number not in names)
        ]
        return f"collection{'s' * (len(told) > 1)} {', '.join(told)}"
