"""Find the value at a path in a JSON text, and edit it without changing the rest of the text.

The document is never parsed into objects and encoded again, which would change spaces, numbers and repeated names.
Kernels find the positions (kernels/paths.py), and this module cuts and joins the text there. Texts are whole JSON
values that were checked before; positions are offsets in bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from headwater.kernels.paths import CONTAINER, FOUND, NOWHERE, among, depth_of, element, member, steps, value_end, walk
from headwater.node.kv.subdoc.path import PATHS_KEPT, Path
from headwater.node.kv.values import is_json
from headwater.node.refused import CommandRefused
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.subdoc import PATH_DEPTH_MAX

INT64 = range(-(1 << 63), 1 << 63)
ALL_OF_THEM = 1 << 62

View: TypeAlias = Any
"""The bytes of a text as an array."""

_INTEGER = re.compile(rb"-?(?:0|[1-9]\d*)")
_SPACES = re.compile(rb"[ \t\n\r]*")


_steps = lru_cache(PATHS_KEPT)(steps)


class PathItem(NamedTuple):
    """A member or an element of a container.

    Attributes:
        begin: the start of the item: of the name of a member, or of an element.
        value: the start of its value.
        before: the end of the item before it; None for the first item.
    """

    begin: int
    value: int
    before: int | None


@dataclass(frozen=True, slots=True)
class PathPlace:
    """The result of following a path.

    Attributes:
        at: the start of the value; if there is no value, the start of the last container on the way.
        missing: the components of the path without a value; empty if the path has one.
        item: the value as an item of its container; None for the document itself, or if there is no value.
        tail: if there is no value, the end of the container's last item; None if the container is empty.
        count: the number of items before the value; of all items if there is no value.
    """

    at: int
    missing: Path = ()
    item: PathItem | None = None
    tail: int | None = None
    count: int = 0


def _view(text: bytes) -> View:
    return np.frombuffer(text, np.uint8)


def _skip(text: bytes, at: int) -> int:
    """Return the position of the next byte that is not white space."""
    return cast("re.Match[bytes]", _SPACES.match(text, at)).end()


def _end(text: bytes, at: int) -> int:
    """Return the end of the value that begins at `at`."""
    return value_end(_view(text), at)


def find(text: bytes, path: Path) -> PathPlace:
    """Follow a path.

    Raises:
        CommandRefused: SUBDOC_PATH_MISMATCH, a name meets a value that is no dictionary, or an index one that is no
            array.
    """
    view, place = _view(text), PathPlace(_skip(text, 0))
    for depth, component in enumerate(path):
        if text[place.at : place.at + 1] != (b"{" if isinstance(component, str) else b"["):
            raise CommandRefused(Status.SUBDOC_PATH_MISMATCH, f"component {depth + 1} meets another kind of value")
        child = _child(text, view, place.at, component)
        if child.item is None:
            return replace(child, missing=path[depth:])
        place = child
    return place


def _child(text: bytes, view: View, container: int, component: str | int) -> PathPlace:
    """Return the place of a component in a container; without `item` if the container does not have it."""
    if isinstance(component, str):
        seen, begin, value, before, count = member(view, container, component.encode())
    else:
        seen, begin, value, before, count = element(view, container, component if component >= 0 else ALL_OF_THEM)
        if component < 0 < count:  # the search ended at the last element
            seen, count = FOUND, count - 1
    if seen == FOUND:
        return PathPlace(value, (), PathItem(begin, value, before if before >= 0 else None), None, count)
    return PathPlace(container, (), None, None if count == 0 else value_end(view, value), count)


def _find_existing(text: bytes, path: Path) -> PathPlace:
    place = find(text, path)
    if place.missing:
        raise CommandRefused(Status.SUBDOC_PATH_ENOENT, "the path leads nowhere")
    return place


# --- looking up -------------------------------------------------------------------------------------------------------


def get(text: bytes, path: Path) -> bytes:
    """Return the value at a path, as in the document."""
    _check_path(path)
    quick = _steps(path)
    if quick is not None:
        at, end = walk(_view(text), quick)
        if at != NOWHERE:
            return text[at:end]
    at = _find_existing(text, path).at
    return text[at : _end(text, at)]


def exists(text: bytes, path: Path) -> bytes:
    """Return an empty value if there is a value at the path; otherwise raise CommandRefused, as `get` does."""
    _check_path(path)
    _find_existing(text, path)
    return b""


def count(text: bytes, path: Path) -> bytes:
    """Return the number of members or elements of the value at a path.

    Raises:
        CommandRefused: SUBDOC_PATH_MISMATCH, the value is neither a dictionary nor an array.
    """
    at = _find_existing(text, path).at
    if text[at : at + 1] not in (b"{", b"["):
        raise CommandRefused(Status.SUBDOC_PATH_MISMATCH, "the path leads to a simple value")
    *_, items = element(_view(text), at, ALL_OF_THEM)
    return b"%d" % items


def _check_path(path: Path) -> None:
    if not path:
        raise CommandRefused(Status.EINVAL, "the path is empty")


# --- changing ---------------------------------------------------------------------------------------------------------


class Edit(NamedTuple):
    """The document after an edit, and the value for the answer."""

    text: bytes
    result: bytes = b""


def dict_add(text: bytes, path: Path, value: bytes, mkdir_p: bool) -> Edit:
    """Add a member. Raises CommandRefused with SUBDOC_PATH_EEXISTS if it exists."""
    return _put(text, path, _single_value(value, path), mkdir_p, replaces=False)


def dict_upsert(text: bytes, path: Path, value: bytes, mkdir_p: bool) -> Edit:
    """Add a member, or replace its value."""
    return _put(text, path, _single_value(value, path), mkdir_p, replaces=True)


def _put(text: bytes, path: Path, value: bytes, mkdir_p: bool, replaces: bool) -> Edit:
    _check_path(path)
    if not isinstance(path[-1], str):
        raise CommandRefused(Status.SUBDOC_PATH_EINVAL, "the path ends in no name")
    place = find(text, path)
    if place.missing:
        return Edit(_add_missing(text, place, value, mkdir_p))
    if not replaces:
        raise CommandRefused(Status.SUBDOC_PATH_EEXISTS, "the path leads to a value")
    return Edit(_replaced(text, place.at, value))


def put_over(text: bytes, path: Path, value: bytes, _: bool) -> Edit:
    """Replace an existing value."""
    _check_path(path)
    value = _single_value(value, path)
    return Edit(_replaced(text, _find_existing(text, path).at, value))


def delete(text: bytes, path: Path, _: bytes, __: bool) -> Edit:
    """Remove a member or an element."""
    _check_path(path)
    item = cast(PathItem, _find_existing(text, path).item)  # a path with components leads into a container
    end = _end(text, item.value)
    if item.before is not None:
        return Edit(text[: item.before] + text[end:])  # also removes the comma before the item
    after = _skip(text, end)
    end = _skip(text, after + 1) if text[after : after + 1] == b"," else end
    return Edit(text[: item.begin] + text[end:])


def push_last(text: bytes, path: Path, value: bytes, mkdir_p: bool) -> Edit:
    """Add elements to the end of an array; with `mkdir_p` a missing array is created."""
    value = _elements(value, path)
    place = find(text, path)
    if place.missing:
        return Edit(_add_missing(text, place, b"[%b]" % value, mkdir_p))
    _array(text, place.at)
    return Edit(_appended(text, place.at, value))


def push_first(text: bytes, path: Path, value: bytes, mkdir_p: bool) -> Edit:
    """Add elements to the start of an array; with `mkdir_p` a missing array is created."""
    value = _elements(value, path)
    place = find(text, path)
    if place.missing:
        return Edit(_add_missing(text, place, b"[%b]" % value, mkdir_p))
    _array(text, place.at)
    return Edit(_with_elements(text, place.at, value))


def insert(text: bytes, path: Path, value: bytes, _: bool) -> Edit:
    """Insert elements before the element at the path, or after the last one if the path is the end of the array."""
    if not path or not isinstance(path[-1], int) or path[-1] < 0:
        raise CommandRefused(Status.SUBDOC_PATH_EINVAL, "the path ends in no index from 0 on")
    value = _elements(value, path[:-1])
    place = find(text, path)
    if place.item is not None:
        begin = place.item.begin
        return Edit(b"%b%b,%b" % (text[:begin], value, text[begin:]))
    if len(place.missing) > 1 or place.count != path[-1]:
        raise CommandRefused(Status.SUBDOC_PATH_ENOENT, "the index is beyond the end of the array")
    return Edit(_appended(text, place.at, value))


def add_unique(text: bytes, path: Path, value: bytes, mkdir_p: bool) -> Edit:
    """Add a simple value to an array of simple values. Raises CommandRefused with SUBDOC_PATH_EEXISTS if the array
    contains the value, with SUBDOC_PATH_MISMATCH if it contains other than simple values.
    """
    value = _single_value(value, (*path, 0)).strip()
    if value[:1] in (b"{", b"["):
        raise CommandRefused(Status.SUBDOC_VALUE_CANTINSERT, "only simple values can be told apart")
    place = find(text, path)
    if place.missing:
        return Edit(_add_missing(text, place, b"[%b]" % value, mkdir_p))
    _array(text, place.at)
    # Strings are compared after decoding, all other values by their text.
    is_string = value[:1] == b'"'
    encoded = json.loads(value).encode("utf-8", "surrogatepass") if is_string else value
    status = among(_view(text), place.at, encoded, is_string=is_string)
    if status == CONTAINER:
        raise CommandRefused(Status.SUBDOC_PATH_MISMATCH, "the array holds more than simple values")
    if status == FOUND:
        raise CommandRefused(Status.SUBDOC_PATH_EEXISTS, "the array holds the value")
    return Edit(_appended(text, place.at, value))


def counter(text: bytes, path: Path, value: bytes, mkdir_p: bool) -> Edit:
    """Add a difference (`value`) to a 64-bit integer; the sum is the edit's result. A missing member is created with
    the difference as its value.
    """
    _check_path(path)
    if not _INTEGER.fullmatch(value) or len(value) > 20 or int(value) not in INT64 or int(value) == 0:
        raise CommandRefused(Status.SUBDOC_DELTA_EINVAL, "the difference is no whole number of 64 bits, or 0")
    place = find(text, path)
    if place.missing:
        if not isinstance(path[-1], str):
            raise CommandRefused(Status.SUBDOC_PATH_ENOENT, "the path leads nowhere")
        return Edit(_add_missing(text, place, value, mkdir_p), value)
    digits = text[place.at : _end(text, place.at)]
    if not _INTEGER.fullmatch(digits):
        raise CommandRefused(Status.SUBDOC_PATH_MISMATCH, "the path leads to no whole number")
    if len(digits) > 20 or int(digits) not in INT64:
        raise CommandRefused(Status.SUBDOC_NUM_ERANGE, "the number there does not fit 64 bits")
    total = int(digits) + int(value)
    if total not in INT64:
        raise CommandRefused(Status.SUBDOC_VALUE_CANTINSERT, "the sum does not fit 64 bits")
    return Edit(_replaced(text, place.at, b"%d" % total), b"%d" % total)


# --- parts of changes -------------------------------------------------------------------------------------------------


def _single_value(value: bytes, path: Path) -> bytes:
    """Return the value if it is one JSON value. Raises CommandRefused with SUBDOC_VALUE_CANTINSERT if it is not JSON,
    with SUBDOC_VALUE_ETOODEEP if it is too deep for this path.
    """
    if not is_json(value):
        raise CommandRefused(Status.SUBDOC_VALUE_CANTINSERT, "the value is not JSON")
    _shallow(value, path)
    return value


def _elements(value: bytes, path: Path) -> bytes:
    """Return the value if it is one or more JSON values, separated by commas; otherwise raise CommandRefused."""
    if not value.strip() or not is_json(b"[%b]" % value):
        raise CommandRefused(Status.SUBDOC_VALUE_CANTINSERT, "the value is no JSON, nor several with commas between")
    _shallow(b"[%b]" % value, path)
    return value


def _shallow(value: bytes, path: Path) -> None:
    """Refuse a value that would make the document deeper than PATH_DEPTH_MAX levels."""
    deepest = depth_of(_view(value))
    if deepest + len(path) > PATH_DEPTH_MAX:
        limit = f"{PATH_DEPTH_MAX} in all"
        raise CommandRefused(Status.SUBDOC_VALUE_ETOODEEP, f"{deepest} levels below {len(path)}, {limit}")


def _array(text: bytes, at: int) -> None:
    if text[at : at + 1] != b"[":
        raise CommandRefused(Status.SUBDOC_PATH_MISMATCH, "the path leads to no array")


def _add_missing(text: bytes, place: PathPlace, value: bytes, mkdir_p: bool) -> bytes:
    """Return the text with a value added at the missing rest of a path: as a member, and inside new dictionaries if
    `mkdir_p` allows them.
    """
    names = place.missing
    if any(isinstance(name, int) for name in names) or (len(names) > 1 and not mkdir_p):
        raise CommandRefused(Status.SUBDOC_PATH_ENOENT, "the way to the path leads nowhere")
    for name in reversed(names[1:]):
        value = b"{%b:%b}" % (quoted(str(name)), value)
    member = b"%b:%b" % (quoted(str(names[0])), value)
    at = place.at + 1 if place.tail is None else place.tail
    return b"%b%b%b%b" % (text[:at], b"" if place.tail is None else b",", member, text[at:])


def quoted(name: str) -> bytes:
    """Return a name as a JSON string."""
    return json.dumps(name, ensure_ascii=False).encode()


def _replaced(text: bytes, at: int, value: bytes) -> bytes:
    return text[:at] + value + text[_end(text, at) :]


def _appended(text: bytes, array: int, value: bytes) -> bytes:
    _, _, last, _, count = element(_view(text), array, ALL_OF_THEM)
    if count == 0:
        return _with_elements(text, array, value)
    end = _end(text, last)
    return b"%b,%b%b" % (text[:end], value, text[end:])


def _with_elements(text: bytes, array: int, value: bytes) -> bytes:
    """Insert elements after the opening bracket."""
    after = _skip(text, array + 1)
    comma = b"" if text[after : after + 1] == b"]" else b","
    return b"%b%b%b%b" % (text[: array + 1], value, comma, text[array + 1 :])


LOOKUPS: dict[int, Callable[[bytes, Path], bytes]] = {
    Opcode.SUBDOC_GET: get,
    Opcode.SUBDOC_EXISTS: exists,
    Opcode.SUBDOC_GET_COUNT: count,
}
EDITS: dict[int, Callable[[bytes, Path, bytes, bool], Edit]] = {
    Opcode.SUBDOC_DICT_ADD: dict_add,
    Opcode.SUBDOC_DICT_UPSERT: dict_upsert,
    Opcode.SUBDOC_DELETE: delete,
    Opcode.SUBDOC_REPLACE: put_over,
    Opcode.SUBDOC_ARRAY_PUSH_LAST: push_last,
    Opcode.SUBDOC_ARRAY_PUSH_FIRST: push_first,
    Opcode.SUBDOC_ARRAY_INSERT: insert,
    Opcode.SUBDOC_ARRAY_ADD_UNIQUE: add_unique,
    Opcode.SUBDOC_COUNTER: counter,
}
ARRAYS_OF_THE_ROOT = frozenset(
    {
        Opcode.SUBDOC_ARRAY_PUSH_LAST,
        Opcode.SUBDOC_ARRAY_PUSH_FIRST,
        Opcode.SUBDOC_ARRAY_ADD_UNIQUE,
    }
)
"""Commands for which an empty path is valid: it means the document itself, which must be an array."""
