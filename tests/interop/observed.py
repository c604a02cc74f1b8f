"""The documents that a node's streams hold, by collection: the witness against which programs of others are held."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from headwater.testing.node import Node
from headwater.wire import dcp, leb128, xattr
from headwater.wire.datatype import Datatype
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import vbucket_of
from tests.node.aware import COLLECTIONS, JSON, MUTATION_SEQNO, XERROR, Aware

DEFAULT = "_default._default"
SNAPPY_NOT_ASKED_FOR = (COLLECTIONS, XERROR, JSON, MUTATION_SEQNO, 0x06)
TO_LATEST = 4


class Document(NamedTuple):
    """A document's body and its extended attributes (name -> what it is as JSON)."""

    body: bytes
    attributes: dict[str, Any]

    @property
    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)


LOGIN = ("ann", "secret")
"""The user of nodes that have users, which listen without TLS to this machine for the witness."""


@contextmanager
def line_to(node: Node, *features: int) -> Iterator[Aware]:
    """A connection that has collections."""
    with Aware(node.port, *features) as line:
        if "users_file" in node.options:
            assert line.ask(Opcode.SASL_AUTH, key=b"PLAIN", value="\0".join(("", *LOGIN)).encode()).status == 0
        yield line


def collections(node: Node) -> dict[int, str]:
    """The collections that there are: id -> "scope.name"."""
    with line_to(node) as line:
        manifest = json.loads(line.ask(Opcode.COLLECTIONS_GET_MANIFEST).value)
    return {
        int(each["uid"], 16): f"{scope['name']}.{each['name']}"
        for scope in manifest["scopes"]
        for each in scope["collections"]
    }


def documents(node: Node) -> dict[tuple[str, str], Document]:
    """All documents of a node by (collection, key), as one stream a vbucket brings them."""
    names, found = collections(node), dict[tuple[str, str], Document]()
    with line_to(node, *SNAPPY_NOT_ASKED_FOR) as line:
        flags = dcp.OpenFlag.PRODUCER | dcp.OpenFlag.INCLUDE_XATTRS
        assert line.request(dcp.Open(key=b"witness", flags=flags)).status == 0
        assert line.ask(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true").status == 0
        for vbucket in range(vbuckets(node)):
            assert line.asks(flags=TO_LATEST, vbucket=vbucket).status == 0
            here = {frame.key: frame for frame in _changes(line)}
            for whole, frame in here.items():
                number, key = leb128.split_key(whole)
                if frame.opcode == Opcode.DCP_MUTATION and number in names:
                    found[names[number], key.decode()] = _document(frame)
    return found


def _changes(line: Aware) -> Iterator[Frame]:
    wanted = (Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION)
    return (frame for frame in line.messages() if frame.opcode in wanted)


def _document(frame: Frame) -> Document:
    if not frame.datatype & Datatype.XATTR:
        return Document(frame.value, {})
    pairs, body = xattr.split(frame.value)
    return Document(bytes(body), {name: json.loads(text) for name, text in pairs.items()})


def vbuckets(node: Node) -> int:
    """How many there are."""
    return int(str(node.options.get("vbuckets", 64)))


def put(node: Node, collection: str, stored: Mapping[str, bytes]) -> None:
    """Store documents in a collection, as somebody who knows the protocol does."""
    numbers = {name: number for number, name in collections(node).items()}
    with line_to(node) as line:
        for key, value in stored.items():
            vbucket = vbucket_of(key.encode(), vbuckets(node))
            assert line.put(key.encode(), value, numbers[collection], vbucket) == 0, key
