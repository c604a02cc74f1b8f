"""The life of an application with an SDK of Couchbase's: one story, told to a program for each language.

The program makes scopes and collections, reads what the node's side stored, stores, changes and removes documents in
two collections, works on parts of documents, and is refused what an application is refused; each thing of its own it
tells by `check NAME`. Then the node's streams must hold what it stored, and it must have read what was there.

    PROGRAM CONNECTION-STRING USER PASSWORD [TRUST-STORE [CERTIFICATE KEY]]

    ready                         the collections are there; it waits for a line
    read COLLECTION KEY VALUE     a document of ours, the value in base64
    check NAME                    something went as it should; a program stops at the first that did not
    done                          all of it
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headwater import testing
from headwater.testing.node import Node
from tests.interop import observed
from tests.interop.observed import DEFAULT, LOGIN, Document

FRUIT, PASSING = "market.fruit", "market.passing"
NUMBER = 500
SECONDS_MAX = 400
CHECKS = (
    "missing exists cas locked expiry counter binary lookup mutate attributes paths projection sixteen unknown passing "
    "listed dropped durable scanned transacted altered"
)

WAYS = {
    "password": "documents, sub-documents, collections, durability, scans, transactions",
    "tls": "the same over TLS",
    "certificate": "the same by client certificate",
}
"""How a program comes in, and what its row says it did."""


def ways(name: str, version: str, what: str = WAYS["password"]) -> list[Any]:
    """Return the cases of a program's test: each is a row of the table; `what` says what its SDK has calls for."""
    rows = {way: pytest.mark.program(name, version, row) for way, row in (WAYS | {"password": what}).items()}
    return [pytest.param(way, marks=row, id=way) for way, row in rows.items()]


def tell(program: Sequence[str], way: str, folder: Path, checks: str = CHECKS) -> int:
    """Let a program (its command) live through it, and pass its checks; returns how many documents were compared.

    Those of both ways: what it stored, and what it read of ours.
    """
    if way == "password":
        with testing.node() as node:
            where = f"couchbase://{node.address}"
            return _tell(program, node, folder, checks, where, "Administrator", "password")
    users = folder / "users"
    users.touch(0o600)
    users.write_text(":".join(LOGIN) + "\n")
    with testing.node(tls=True, users_file=users, administrators="ann", without_tls="loopback") as node:
        assert node.certificates is not None
        own = node.certificates.user("ann")
        files = [node.certificates.trust_store, *([str(own.certificate), str(own.key)] if way == "certificate" else [])]
        password = "not asked for" if way == "certificate" else LOGIN[1]
        where = f"couchbases://127.0.0.1:{node.tls_port}"
        return _tell(program, node, folder, checks, where, LOGIN[0], password, *files)


def _tell(program: Sequence[str], node: Node, folder: Path, checks: str, *arguments: str) -> int:
    errors = folder / "program.log"
    with (
        errors.open("wb") as log,
        subprocess.Popen(
            [*program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            before = _until(process.stdout, "ready", errors)
            ours = {where: _ours(where) for where in (DEFAULT, FRUIT)}
            for where, stored in ours.items():
                observed.put(node, where, stored)
            after, _ = process.communicate("go\n", timeout=SECONDS_MAX)
        finally:
            process.kill()
    lines = before + after.splitlines()
    assert process.returncode == 0 and lines[-1] == "done", f"{lines[-3:]}\n{errors.read_text('utf-8', 'replace')}"
    assert {line.split()[1] for line in lines if line.startswith("check ")} == set(checks.split())
    assert _read(lines) == {(where, key): json.loads(text) for where in ours for key, text in ours[where].items()}
    return 2 * NUMBER + _hold(node, ours, has_transactions="transacted" in checks)


def _until(lines: Any, wanted: str, errors: Path) -> list[str]:
    got = []
    for line in lines:
        got.append(line.rstrip("\n"))
        if got[-1] == wanted:
            return got
    raise AssertionError(f"it said {got[-5:]} and ended:\n{errors.read_text('utf-8', 'replace')}")


def _ours(where: str) -> dict[str, bytes]:
    return {f"ours-{n}": json.dumps({"n": n, "in": where, "of": "the node"}).encode() for n in range(NUMBER)}


def _read(lines: list[str]) -> dict[tuple[str, str], Any]:
    told = (line.split()[1:] for line in lines if line.startswith("read "))
    return {(where, key): json.loads(base64.b64decode(value)) for where, key, value in told}


def _hold(node: Node, ours: dict[str, dict[str, bytes]], *, has_transactions: bool) -> int:
    """The node's streams hold what the program stored, what we did, and nothing else; returns how many that are."""
    found = {place: each for place, each in observed.documents(node).items() if not place[1].startswith("_txn:")}
    if has_transactions:
        left = found.pop((FRUIT, "bank-a"))
        assert (left.json, left.attributes) == ({"n": 7}, {})  # nothing that was staged is left
    parts = found.pop((FRUIT, "parts"))
    assert parts.json == {"tags": ["a", "b", "c"], "stock": {"n": 42, "place": {"row": 7}}}
    assert parts.attributes["owner"] == {"id": "me"}
    assert found.pop((FRUIT, "many")).json == {f"p{n}": n for n in range(16)}
    assert found.pop((DEFAULT, "visits")) == Document(b"15", {})
    assert found.pop((FRUIT, "line")) == Document(b"abc", {})
    assert found.pop((DEFAULT, "apple")).json == {"n": 3}
    assert found.pop((FRUIT, "lime")).json == {"a": {"b": 1}, "c": 2, "d": 3}
    assert found.pop((PASSING, "pear")).json == {"n": 1}
    assert found.pop((FRUIT, "durable")).json == {"n": 4}
    theirs = {key: document for key, document in found.items() if not key[1].startswith("ours-")}
    wanted = {(where, f"theirs-{n}"): {"n": n, "in": where} for where in ours for n in range(NUMBER) if n % 10}
    assert {key: document.json for key, document in theirs.items()} == wanted
    kept = {key: document.body for key, document in found.items() if key not in theirs}
    assert kept == {(where, key): text for where in ours for key, text in ours[where].items()}
    return len(found) + 8 + has_transactions
