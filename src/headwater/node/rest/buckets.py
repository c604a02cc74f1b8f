"""The HTTP pages with which SDKs create and drop buckets, and the page that changes a quota or a history.

The form of a new bucket may have all of Couchbase's fields, but only its name and its history are used, and headwater's
own fields `quotaMiB` and `vbuckets`. Couchbase's settings of memory, replicas and eviction have no counterpart in a
node, and no effect.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from headwater.errors import StorageError
from headwater.node.buckets.catalog import NewBucket
from headwater.node.refused import CommandRefused
from headwater.node.rest.made import Made
from headwater.node.storage.retention import Retention
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.kv.api import Services

__all__ = ["STAYS", "TRUTHS", "alter", "create", "drop"]

_QUOTAS = ("ramQuota", "ramQuotaMB", "quotaMiB")
STAYS = "a bucket stays as it was made: drop it and make another (headwater bucket)"
_SECONDS, _BYTES, _DEFAULT = (
    "historyRetentionSeconds", "historyRetentionBytes", "historyRetentionCollectionDefault"
)  # fmt: skip
_DIGITS_MAX = 18
TRUTHS = {"true": True, "1": True, "false": False, "0": False}
_STATUS: dict[int, int] = {Status.KEY_ENOENT: 404}
_OF_SEVERAL = "Not allowed on this version of cluster: of several nodes, use headwater bucket, which tells all of them"


async def create(server: Services, _: tuple[str, ...], body: bytes) -> Made:
    """Create the bucket that a form describes; refused if this node is in a cluster with others."""
    try:
        if _is_of_several(server):
            return _refused(_OF_SEVERAL, 400)
        await server.catalog.create(_wish(body))
    except CommandRefused as refused:
        if refused.status == Status.KEY_EEXISTS:  # SDKs recognise it by these words
            return _refused("Bucket with given name already exists", 400)
        return _refused(refused.context, _STATUS.get(refused.status, 400))
    except StorageError as error:
        return _refused(str(error), 503)
    except ValueError as error:
        return _refused(str(error), 400)
    return Made(b"", 202)


async def drop(server: Services, _: tuple[str, ...], __: bytes) -> Made:
    """Drop a bucket; refused if this node is in a cluster with others."""
    try:
        if _is_of_several(server):
            return _refused(_OF_SEVERAL, 400)
        # By its object as well as its name: a bucket that was created under this name meanwhile must stay.
        await server.catalog.drop(server.bucket.name, server.bucket)
    except CommandRefused as refused:
        return _refused(refused.context, _STATUS.get(refused.status, 400))
    except StorageError as error:
        return _refused(str(error), 503)
    return Made(b"", 200)


async def alter(server: Services, _: tuple[str, ...], body: bytes) -> Made:
    """Change a bucket's quota (`ramQuota`, `ramQuotaMB` or `quotaMiB`) or its history.

    Refused if this node is in a cluster with others.
    """
    try:
        if _is_of_several(server):
            return _refused(_OF_SEVERAL, 400)
        form = _form(body)
        history, default = _history(form), _default_of(form)
        # All fields are checked before anything is changed, so that a form with a mistake changes nothing.
        quota = _quota(form, may_lack=default is not None or any(each is not None for each in history))
        if quota is not None:
            await server.catalog.set_quota(server.bucket, quota)
        if any(each is not None for each in history):
            await server.catalog.keep_history(server.bucket, *history)
        if default is not None:
            await server.catalog.give_collections_history(server.bucket, history=default)
    except CommandRefused as refused:
        return Made(json.dumps({"errors": {"ramQuota": refused.context, "_": refused.context}}).encode(), 400)
    except StorageError as error:
        return _refused(str(error), 503)
    except ValueError as error:
        return _refused(str(error), 400)
    return Made(b"", 200)


def _history(form: dict[str, str]) -> tuple[int | None, int | None]:
    """Remove the fields of the retention of history from a form.

    Returns:
        The seconds and the bytes; None in place of a missing field.

    Raises:
        ValueError: a field is not a whole number.
    """
    numbers = {name: form.pop(name) for name in (_SECONDS, _BYTES) if name in form}
    for name, text in numbers.items():
        if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
            raise ValueError(f"{name} is a whole number, not below 0")
    seconds, size = numbers.get(_SECONDS), numbers.get(_BYTES)
    return (None if seconds is None else int(seconds), None if size is None else int(size))


def _default_of(form: dict[str, str]) -> bool | None:
    """Remove the field from a form that says whether new collections have a history.

    Returns:
        Its value; None if the form does not have it.

    Raises:
        ValueError: the field is neither true nor false.
    """
    if _DEFAULT not in form:
        return None
    text = form.pop(_DEFAULT)
    if text not in TRUTHS:
        raise ValueError(f"{_DEFAULT} is true or false")
    return TRUTHS[text]


def _quota(form: dict[str, str], *, may_lack: bool) -> int | None:
    """Remove the quota from a form and return it, in MiB; None if it is missing and `may_lack`.

    Raises:
        ValueError: it is missing, or invalid, or the form has other fields.
    """
    numbers = [form.pop(name) for name in _QUOTAS if name in form]
    if form or len(numbers) > 1 or not (numbers or may_lack):
        raise ValueError(
            f"{STAYS}; only its quota can change, one of {', '.join(_QUOTAS)}, and its history, {_SECONDS}, {_BYTES}"
            f" and {_DEFAULT}"
        )
    if not numbers:
        return None
    if not _is_number(numbers[0]):
        raise ValueError("a quota is a whole number, MiB")
    return int(numbers[0])


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _form(body: bytes) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(body.decode(), keep_blank_values=True).items()}


def _is_of_several(server: Services) -> bool:
    """Return True if the map of any bucket has other nodes than this one."""
    maps = (json.loads(bucket.cluster.config()) for bucket in server.buckets.values())
    return any(len(each.get("nodesExt", [])) > 1 for each in maps)


def _refused(why: str, status: int) -> Made:
    return Made(json.dumps({"errors": {"name": why, "_": why}}).encode(), status)


def _wish(body: bytes) -> NewBucket:
    """Return the new bucket that a form describes.

    Raises:
        ValueError: a field of the form is invalid.
    """
    form = _form(body)
    numbers = {name: form.get(name, "") for name in ("quotaMiB", "vbuckets")}
    for name, text in numbers.items():
        if text and not _is_number(text):
            raise ValueError(f"{name} is a whole number")
    if form.get("bucketType", "membase") not in ("membase", "couchbase"):
        raise ValueError("a bucket of this node is of type couchbase: it has a disk")
    vbuckets = int(numbers["vbuckets"]) if numbers["vbuckets"] else None
    seconds, size = _history(form)
    return NewBucket(
        form.get("name", ""),
        vbuckets,
        int(numbers["quotaMiB"] or 0),
        history=Retention(seconds or 0, size or 0),
        collections_have_history=_default_of(form) is not False,
    )
