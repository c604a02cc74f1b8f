"""Users of a cluster: changed at one of three nodes, known at all, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from harness.nodes import until
from headwater import testing
from headwater.accounts.roles import read_grants
from headwater.accounts.users import Account, edited
from headwater.cluster import users
from headwater.cluster.admin import NodeAdmin
from headwater.cluster.founding import found_cluster
from headwater.cluster.members import Members
from headwater.cluster.rebalance import Rebalance
from headwater.errors import ClusterError
from headwater.node.users.file import UsersFile
from headwater.testing.node import Node
from headwater.wire.opcodes import Opcode
from headwater.wire.users import UserList
from tests.node.replication.support import Line

from .nodes import at, command

Result = TypeVar("Result")
ROOT, SECRET = "r00t", "the secret of the members"


def private(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o600)
    return file


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The options that a member is started with."""
    folder = tmp_path_factory.mktemp("secrets")
    return {
        "vbuckets": 4,
        "vbucket_state": "none",
        "user": "root",
        "password_file": private(folder / "root", ROOT),
        "cluster_secret_file": private(folder / "secret", SECRET),
    }


def clustered(stack: ExitStack, options: dict[str, object], count: int = 3) -> list[Node]:
    nodes = [stack.enter_context(testing.node(**options)) for _ in range(count)]  # type: ignore[arg-type]
    on(lambda members: found_cluster(members, at(*nodes), 1))
    return nodes


@pytest.fixture(scope="module")
def nodes(options: dict[str, object]) -> Iterator[list[Node]]:
    """Three members."""
    with ExitStack() as stack:
        yield clustered(stack, options)


def on(work: Callable[[Members], Awaitable[Result]], user: str = "root", password: str = ROOT) -> Result:
    async def run() -> Result:
        async with Members("default", user, password, timeout_seconds=30.0) as members:
            return await work(members)

    return asyncio.run(run())


def with_user(name: str, password: str, roles: str = "read") -> users.Edit:
    made = Account.create(password, read_grants(roles))
    return lambda known: edited(known, {}, {name: made})  # with the cluster that it has


def change(node: Node, edit: users.Edit) -> users.Spread:
    return on(lambda members: users.change(members, at(node), edit))


def login(node: Node, name: str, password: str) -> int:
    with Line(node.port) as line:
        line.call(Opcode.HELLO, b"test", b"\0\7")
        return line.call(Opcode.SASL_AUTH, b"PLAIN", f"\0{name}\0{password}".encode()).status


def named(node: Node) -> set[str]:
    """Who is in the file of a node. To try logins until one is right would slow them all down."""
    return set(UsersFile(node.data).load() or {})


def comes_in(nodes: list[Node], name: str, password: str) -> list[bool]:
    return [login(node, name, password) == 0 for node in nodes]


def test_a_user_who_is_added_at_one_node_is_known_at_all_when_that_is_answered(nodes: list[Node]) -> None:
    spread = change(nodes[1], with_user("ann", "an-n"))
    assert set(spread.nodes) == set(at(*nodes)) and spread.away == {}
    assert comes_in(nodes, "ann", "an-n") == [True] * 3
    assert comes_in(nodes, "ann", "other") == [False] * 3
    assert all(b"an-n" not in (node.data / "USERS").read_bytes() for node in nodes)
    change(nodes[2], with_user("ann", "other"))
    assert comes_in(nodes, "ann", "other") == [True] * 3


def test_a_change_in_the_folder_of_one_member_is_heard_of_by_the_others(nodes: list[Node]) -> None:
    change(nodes[0], with_user("bob", "b0b"))
    with Line(nodes[2].port) as line:
        assert line.call(Opcode.SASL_AUTH, b"PLAIN", b"\0bob\0b0b").status == 0
        with UsersFile(nodes[1].data).editing() as accounts:
            del accounts["bob"]
            accounts["carl"] = Account.create("c4rl", read_grants("write"))
        until(lambda: all("carl" in named(node) and "bob" not in named(node) for node in nodes), "all have heard of it")
        until(lambda: comes_in(nodes, "carl", "c4rl") == [True] * 3, "who was added comes in")
        assert line.file.read(1) == b"", "who was removed is cut off"
    assert comes_in(nodes, "bob", "b0b") == [False] * 3


def test_a_member_that_was_away_learns_of_all_when_it_is_back_and_brings_nobody_back(nodes: list[Node]) -> None:
    change(nodes[0], with_user("dora", "d0ra"))
    nodes[2].kill()
    spread = change(nodes[0], with_user("emil", "3mil"))
    assert list(spread.away) == at(nodes[2]) and len(spread.nodes) == 2
    change(nodes[1], lambda known: known.without("dora"))
    nodes[2].start()
    until(lambda: "emil" in named(nodes[2]) and "dora" not in named(nodes[2]), "it has heard of both")
    until(lambda: login(nodes[2], "emil", "3mil") == 0, "who was added comes in")
    until(lambda: len({(node.data / "USERS").read_bytes() for node in nodes}) == 1, "all files are the same")
    assert comes_in(nodes, "dora", "d0ra") == [False] * 3


@pytest.mark.parametrize("place", ["users.before_rename", "users.after_rename"])
def test_a_member_that_is_killed_while_it_writes_them_has_the_old_or_the_new_and_then_the_new(
    nodes: list[Node], place: str
) -> None:
    victim = nodes[1]
    victim.stop()
    victim.environment["HEADWATER_FAILPOINTS"] = f"{place}=kill"
    victim.start()
    spread = change(nodes[0], with_user(place, "f4ul"))
    assert list(spread.away) == at(victim) and victim.wait() == -9
    assert (place in (UsersFile(victim.data).load() or {})) == (place == "users.after_rename")
    victim.environment.clear()
    victim.start()
    until(lambda: place in named(victim), "it has the new ones")
    until(lambda: comes_in(nodes, place, "f4ul") == [True] * 3, "they are in force")


def test_the_command_tells_all_nodes_and_says_who_was_away(nodes: list[Node], tmp_path: Path) -> None:
    by, new = private(tmp_path / "by", ROOT), private(tmp_path / "new", "g0ra")
    where = ("--node", nodes[0].address, "--by", "root", "--by-password-file", str(by))
    added = command("user", "add", "gora", "--roles", "read[default]", "--password-file", str(new), *where)
    assert added == (0, "gora: read[default] (on 3 nodes)\n", "")
    assert comes_in(nodes, "gora", "g0ra") == [True] * 3
    nodes[1].kill()
    status, told, remark = command("user", "roles", "gora", "write", *where)
    assert (status, told) == (0, "gora: write (on 2 nodes)\n") and f"{nodes[1].address} is away" in remark
    nodes[1].start()
    listed = json.loads(command("user", "list", "--json", *where)[1])["users"]
    assert listed["gora"] == ["write"]
    again, _, why = command("user", "add", "gora", "--password-file", str(new), *where)
    assert again == 1 and "headwater user password" in why
    wrong = command("user", "list", *where[:-1], str(new))
    assert wrong[0] != 0 and "Traceback" not in wrong[2]
    assert command("user", "remove", "gora", *where)[1] == "gora is removed (on 3 nodes)\n"


def test_a_cluster_begins_with_the_users_of_all_its_nodes_and_who_joins_takes_them_for_his_own(
    options: dict[str, object],
) -> None:
    with ExitStack() as stack:
        first, second, late = (stack.enter_context(testing.node(**options)) for _ in range(3))  # type: ignore[arg-type]
        for node, name in ((first, "ann"), (second, "bob"), (late, "guest")):
            with UsersFile(node.data).editing() as accounts:
                accounts[name] = Account.create("pass", read_grants("read"))
        until(lambda: login(late, "guest", "pass") == 0, "the node knows its own user")
        on(lambda members: found_cluster(members, at(first, second), 1))
        for name in ("ann", "bob"):
            until(lambda name=name: all(name in named(each) for each in (first, second)), f"{name} is known at both")
        on(lambda members: Rebalance(members, at(first), add=at(late)).run())
        for name in ("ann", "bob"):
            until(lambda name=name: name in named(late), f"{name} is known at the new one")
            until(lambda name=name: login(late, name, "pass") == 0, f"{name} comes in there")
        assert comes_in([first, second, late], "guest", "pass") == [False] * 3
        known = UsersFile(late.data).load_list() or UserList()
        assert sorted(known.entries) == ["ann", "bob"] and known.cluster


def test_members_that_let_everybody_in_take_no_users_by_which_they_would_shut_each_other_out() -> None:
    with ExitStack() as stack:
        two = [stack.enter_context(testing.node(vbuckets=4, vbucket_state="none")) for _ in range(2)]

        async def work(members: Members) -> None:
            await found_cluster(members, at(*two), 1)
            with pytest.raises(ClusterError, match="cluster-secret-file"):
                await users.change(members, at(two[0]), with_user("ann", "pass"))

        async def run() -> None:
            async with Members(timeout_seconds=30.0) as members:
                await work(members)

        asyncio.run(run())
        assert not any((each.data / "USERS").exists() for each in two)


def test_of_two_who_remove_each_other_at_once_one_is_refused_and_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    accounts = {name: Account.create(f"{name}-secret", read_grants("administer")) for name in ("ann", "bea")}
    with ExitStack() as stack:
        nodes = [stack.enter_context(testing.node(vbuckets=4, vbucket_state="none")) for _ in range(2)]
        for node in nodes:
            node.stop()
            UsersFile(node.data).save(accounts)
            node.start()
        on(lambda members: found_cluster(members, at(*nodes), 0), "ann", "ann-secret")
        begun: list[str] = []
        give = NodeAdmin.set_users

        async def give_later(admin: NodeAdmin, told: UserList) -> None:
            """Each begins with what both have seen; ann is quicker at the one node, bea at the other."""
            begun.append(f"{admin.endpoint.user}")
            while len(set(begun)) < 2:
                await asyncio.sleep(0)
            if (admin.endpoint.user == "ann") != (admin.address == at(nodes[0])[0]):
                await asyncio.sleep(0.2)
            await give(admin, told)

        monkeypatch.setattr(NodeAdmin, "set_users", give_later)

        async def removal(by: str, whom: str) -> users.Spread:
            async with Members("default", by, f"{by}-secret", timeout_seconds=30.0) as members:
                return await users.change(members, at(nodes[0]), lambda known: known.without(whom))

        async def both() -> list[users.Spread | BaseException]:
            return await asyncio.gather(removal("ann", "bea"), removal("bea", "ann"), return_exceptions=True)

        done, refused = asyncio.run(both())
        assert isinstance(done, users.Spread), done
        assert isinstance(refused, ClusterError) and "the users were not changed" in str(refused)
        assert [named(node) for node in nodes] == [{"ann"}] * 2
