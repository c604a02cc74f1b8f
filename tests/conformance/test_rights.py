"""docs/reference/rights.md, cell by cell, against a node that runs.

A command is sent with a datatype that none has: who has the right to it is told so (EINVAL), who has not is told that,
and nothing is done.
"""

from __future__ import annotations

import http.client
from base64 import b64encode
from collections.abc import Iterator

import pytest

from headwater import testing
from headwater.accounts.roles import FINE, ROLES, read_grants
from headwater.accounts.users import Account
from headwater.node.kv.rights import rule_of
from headwater.node.users.file import UsersFile
from headwater.testing.node import Node
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.conformance.tables import table
from tests.node.replication.support import Line, until

PASSWORD = "s3cret"
PART = "default:_default:_default"
NO_DATATYPE = 0xF0
SAMPLES = {
    "{}": "default",
    "(?:/local)?": "",
    "(.+)": "read",
    "(?:/[^/]*)?": "",
    ".*": "x",
    "(?:users|groups)": "users",
    "([^/]+)": "none",
    "[^/]+": "none",
}


TEXT = list(table("reference/rights.md", "Text"))
CLOSED, DENIED = b"CLIENT_ERROR unauthenticated", b"CLIENT_ERROR access denied"
COMMANDS, PAGES = list(table("reference/rights.md", "Commands")), list(table("reference/rights.md", "Pages"))


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A node with one user of each role."""
    with testing.node(vbuckets=4) as running:
        with UsersFile(running.data).editing() as accounts:
            accounts |= {role: Account.create(PASSWORD, read_grants(role)) for role in ROLES}
            accounts["part"] = Account.create(
                PASSWORD, read_grants(",".join(f"{role}[{PART}]" for role in sorted(FINE)))
            )
        until(lambda: status_of(running, None, COMMANDS[0]) == Status.EACCESS, "the node has taken the users up")
        yield running


def status_of(node: Node, user: str | None, row: dict[str, str]) -> int:
    with Line(node.port) as line:
        return asked(line, user, row)


def asked(line: Line, user: str | None, row: dict[str, str]) -> int:
    assert line.call(Opcode.HELLO, b"walker", b"\0\7").status == 0
    if user is not None:
        assert line.call(Opcode.SASL_AUTH, b"PLAIN", f"\0{user}\0{PASSWORD}".encode()).status == 0
    opcode = int(row["opcode"], 16)
    line.send(Frame(0x80, opcode, extras=extras(opcode, row["command"]), datatype=NO_DATATYPE, opaque=77))
    return line.read().status


def extras(opcode: int, command: str) -> bytes:
    """The extras of the case that a row is about."""
    _, _, about = command.partition(", ")
    for length, offset, flags, beyond in rule_of(opcode).cases:
        if beyond.about == about:
            told = flags.write(beyond.bits)
            return bytes(offset) + told + bytes(length - offset - len(told))
    return b""


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_send_what_the_page_says_and_nothing_else(node: Node, role: str) -> None:
    wrong = []
    for row in COMMANDS:
        status = status_of(node, role, row)
        if row["served"]:
            expected = Status.EINVAL if row[role] else Status.EACCESS
        else:
            expected = Status.NOT_SUPPORTED if status == Status.NOT_SUPPORTED else Status.UNKNOWN_COMMAND
        if status != expected:
            wrong.append((row["command"], status))
    assert wrong == [] and len(COMMANDS) > 100


def test_roles_in_a_part_of_a_bucket_go_as_far_as_the_page_says(node: Node) -> None:
    """The default collection, of which the role is: what is not about documents of it needs more."""
    wrong = []
    for row in filter(lambda row: row["served"], COMMANDS):
        may = row["needs"] in ("none", "login") or row["in a part"] in ("its collection", "anywhere")
        status = status_of(node, "part", row)
        if status != (Status.EINVAL if may else Status.EACCESS):
            wrong.append((row["command"], status))
    assert wrong == []


def test_before_a_login_none_but_those_that_need_nothing_may_be_sent(node: Node) -> None:
    told = {row["command"]: status_of(node, None, row) for row in COMMANDS}
    open_to_all = {row["command"] for row in COMMANDS if row["needs"] == "none"}
    assert {command for command, status in told.items() if status != Status.EACCESS} == open_to_all


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_read_the_pages_that_the_page_says(node: Node, role: str) -> None:
    wrong = []
    for row in PAGES:
        path = row["page"].strip("`")
        for pattern, sample in SAMPLES.items():
            path = path.replace(pattern, sample)
        for method in row["method"].split(", "):
            status = page(node, method, path, role)
            expected = (200, 400, 404) if "/none" in path else (200, 400)
            if (status == 403) != (not row[role]) or (row[role] and status not in expected):
                wrong.append((method, path, status))
    assert wrong == [] and len(PAGES) > 15


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_send_the_lines_of_text_that_the_page_says(node: Node, role: str) -> None:
    with Line(node.port) as line:
        assert said(line, b"%b\r\n%b" % (b"get k", login_line(role))) == [CLOSED, b"STORED"]
        wrong = []
        for row in TEXT:
            words = row["line"].strip("`")
            data = b"x\r\n" if words.split()[0] in {"set", "add", "replace", "append", "prepend", "cas", "ms"} else b""
            denied = any(each.startswith(DENIED) for each in said(line, words.encode() + b"\r\n" + data))
            if denied == bool(row[role]):
                wrong.append(words)
    assert wrong == [] and len(TEXT) > 20


def login_line(role: str) -> bytes:
    told = f"{role} {PASSWORD}".encode()
    return b"set x 0 0 %d\r\n%b\r\n" % (len(told), told)


def said(line: Line, asked: bytes) -> list[bytes]:
    """The lines that answer some of text; a no-op behind them tells where they end."""
    line.sock.sendall(asked + b"mn\r\n")
    return [each.rstrip(b"\r\n") for each in iter(line.file.readline, b"MN\r\n")]


def page(node: Node, method: str, path: str, user: str) -> int:
    line = http.client.HTTPConnection(node.host, node.port, timeout=120)
    token = b64encode(f"{user}:{PASSWORD}".encode()).decode()
    line.request(method, path, headers={"Authorization": f"Basic {token}"})
    answer = line.getresponse()
    line.close()
    return answer.status
