"""The pages with which SDKs create and drop scopes and collections.

SDKs recognise a refusal by its text, so the texts must not change.

Source: interop.md 4.0, 11; the answers are those that Couchbase's Python SDK 4.6.3 and Java SDK 3 understand.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from headwater.errors import StorageError
from headwater.node.rest.buckets import TRUTHS
from headwater.node.rest.made import Made
from headwater.wire.manifest import CollectionsManifest, ManifestRefused, NoSuchName

if TYPE_CHECKING:
    from headwater.node.buckets.collections import Collections
    from headwater.node.kv.api import Services

OF_SEVERAL = (
    "Not allowed on this version of cluster: of several nodes, use headwater collection, which tells all of them"
)
"""The refusal of a cluster of several nodes: a page changes one node only, and a client may ask any of them, so that
two nodes could give the same id to different collections."""

STAYS = "Not allowed on this version of cluster: the maxTTL of a collection is given when it is made, and stays"

_TTLS = ("maxTTL", "maxExpiry")

Edit = Callable[["Collections", tuple[str, ...], dict[str, str]], Callable[[CollectionsManifest], CollectionsManifest]]
Change = Callable[["Services", tuple[str, ...], bytes], Awaitable[Made]]


def _changing(edit: Edit) -> Change:
    """Return the function of a page that applies an edit to the manifest, and answers with the new manifest's uid."""

    async def change(server: Services, names: tuple[str, ...], body: bytes) -> Made:
        collections = server.bucket.collections
        if len(json.loads(server.cluster.config()).get("nodesExt", [])) > 1:
            return Made(json.dumps({"errors": {"_": OF_SEVERAL}}).encode(), 400)
        try:
            manifest = await collections.change(edit(collections, names, _form(body)))
        except NoSuchName as error:
            return Made(json.dumps({"errors": {"_": str(error)}}).encode(), 404)
        except ManifestRefused as error:
            return Made(json.dumps({"errors": {"name": str(error)}}).encode(), 400)
        except StorageError as error:
            return Made(json.dumps({"errors": {"_": str(error)}}).encode(), 503)
        return Made(json.dumps({"uid": f"{manifest.uid:x}"}).encode())

    return change


def _form(body: bytes) -> dict[str, str]:
    try:
        return {name: values[-1] for name, values in parse_qs(body.decode(), keep_blank_values=True).items()}
    except ValueError:
        raise ManifestRefused("the form can not be read") from None


def _seconds(form: dict[str, str]) -> int | None:
    """Return a form's maxTTL in seconds; None if the collection has none.

    It has none if the field is absent or -1, or 0, which stands for the bucket's: buckets have none here.
    """
    text = next((form[name] for name in _TTLS if name in form), "")
    if text in ("", "-1"):
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        raise ManifestRefused(f"maxTTL {text[:20]!r} is not a number of seconds")
    return int(text) or None


def _history_in(form: dict[str, str]) -> bool | None:
    """Return True if a form gives the collection a history, False if it takes it away; None without that field."""
    if "history" not in form:
        return None
    if form["history"] not in TRUTHS:
        raise ManifestRefused(f"history {form['history'][:20]!r} is neither true nor false")
    return TRUTHS[form["history"]]


def _altered(names: tuple[str, ...], form: dict[str, str]) -> Callable[[CollectionsManifest], CollectionsManifest]:
    """Return the edit that gives a collection a history or takes it away.

    The collection's maximum TTL can't change: a form that has it must have the present one.
    """
    history, seconds = _history_in(form), _seconds(form)
    names_ttl = not form.keys().isdisjoint(_TTLS)

    def edit(manifest: CollectionsManifest) -> CollectionsManifest:
        collection = manifest.collection(*names)
        if names_ttl and collection is not None and collection.max_ttl != seconds:
            raise ManifestRefused(STAYS)
        if history is None and not names_ttl:
            raise ManifestRefused("a collection can be given a history, history=true, or none, history=false")
        return (
            manifest if collection and history is None else manifest.with_history(*names, history=history is not False)
        )

    return edit


create_scope: Change = _changing(lambda known, _, form: known.with_scope(form.get("name", "")))
drop_scope: Change = _changing(lambda _, names, __: lambda manifest: manifest.without_scope(names[0]))
create_collection: Change = _changing(
    lambda known, names, form: known.with_collection(
        names[0], form.get("name", ""), _seconds(form), history=_history_in(form)
    )
)
alter_collection: Change = _changing(lambda _, names, form: _altered(names, form))
drop_collection: Change = _changing(lambda _, names, __: lambda manifest: manifest.without_collection(*names))
