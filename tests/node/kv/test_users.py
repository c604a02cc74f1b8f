"""IOCTL_GET and IOCTL_SET "users": who may see verifiers, who may change users, and what is no list."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from harness.nodes import Line, until
from headwater import testing
from headwater.accounts.roles import read_grants
from headwater.accounts.users import Account
from headwater.node.users.file import UsersFile
from headwater.testing.node import Node
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.users import UserList

PASSWORD, SECRET = "s3cret", "the secret of the members"
ROLES = {"root": "administer", "some": "administer[default],replicate,monitor", "copy": "replicate"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    secret = tmp_path_factory.mktemp("secret") / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    with testing.node(vbuckets=2, user="first", password_file=secret, cluster_secret_file=secret) as running:
        with UsersFile(running.data).editing() as accounts:
            accounts |= {name: Account.create(PASSWORD, read_grants(role)) for name, role in ROLES.items()}
        until(lambda: "root" in json.loads(known(running))["users"], "the node has taken the users up")
        yield running


def login(node: Node, name: str, password: str = PASSWORD) -> Line:
    line = Line(node.port)
    line.call(Opcode.HELLO, b"test", b"\0\7")
    if name == "@cluster":
        line.log_in_as_member(password)
    else:
        assert line.call(Opcode.SASL_AUTH, b"PLAIN", f"\0{name}\0{password}".encode()).status == 0
    line.call(Opcode.SELECT_BUCKET, b"default")
    return line


def known(node: Node) -> bytes:
    """The list, as another member is told it."""
    with login(node, "@cluster", SECRET) as member:
        return member.call(Opcode.IOCTL_GET, b"users").value


def test_administrators_and_members_see_verifiers_and_nobody_else(node: Node) -> None:
    text = known(node)
    with login(node, "root") as root:
        assert root.call(Opcode.IOCTL_GET, b"users").value == text
        assert root.call(Opcode.IOCTL_GET, b"users", UserList.decode(text).digest().encode()).value == b""
        assert root.call(Opcode.IOCTL_GET, b"users", b"another").value == text
        assert root.call(Opcode.IOCTL_GET, b"cups").status == Status.EINVAL
    for name in ("some", "copy"):
        with login(node, name) as line:
            assert line.call(Opcode.IOCTL_GET, b"users").status == Status.EACCESS, name
    assert "user 'copy' may not see or change the users" in node.log


def test_who_does_not_administer_all_buckets_changes_no_users(node: Node) -> None:
    before = known(node)
    more = UserList.decode(before).without("root").encode()
    for name, password in (("some", PASSWORD), ("copy", PASSWORD), ("@cluster", SECRET)):
        with login(node, name, password) as line:
            assert line.call(Opcode.IOCTL_SET, b"users", more).status == Status.EACCESS, name
    assert known(node) == before


def test_an_administrators_list_becomes_one_with_what_is_there_and_is_in_force_when_it_is_answered(node: Node) -> None:
    entry = UserList.decode(known(node)).entries["copy"]
    added = UserList().with_user("dora", ["read"], entry.keys)
    with login(node, "root") as root:
        assert root.call(Opcode.IOCTL_SET, b"users", added.encode()).status == 0
    with login(node, "dora"):
        pass
    assert sorted(UsersFile(node.data).load() or {}) == ["copy", "dora", "root", "some"]
    assert "user 'root' added user 'dora': read" in node.log


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'{"users":{},"cluster":"x"}',
        b'{"users":{"a":{"revision":1,"roles":["king"],"keys":{}}}}',
        b'{"users":{"a":{"revision":-1,"roles":[],"keys":{}}}}',
    ],
)
def test_what_is_no_list_or_another_clusters_is_refused_and_changes_nothing(node: Node, text: bytes) -> None:
    before = (node.data / "USERS").read_bytes()
    with login(node, "root") as root:
        assert root.call(Opcode.IOCTL_SET, b"users", text).status == Status.EINVAL
    assert (node.data / "USERS").read_bytes() == before


def test_roles_and_keys_that_nobody_understands_are_refused(node: Node) -> None:
    entry = UserList.decode(known(node)).entries["copy"].as_json()
    with login(node, "root") as root:
        for wrong in ({"roles": ["king"]}, {"keys": {**entry["keys"], "sha1": ["no base64", 1, "", ""]}}):
            text = json.dumps({"users": {"a": {**entry, **wrong}}}).encode()
            refused = root.call(Opcode.IOCTL_SET, b"users", text)
            assert refused.status == Status.EINVAL, wrong
