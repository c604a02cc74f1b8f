"""Work on users: on accounts anywhere, and on a node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater import testing
from headwater.accounts.roles import read_grants
from headwater.accounts.users import Account
from headwater.cluster.members import Members
from headwater.cluster.users import Spread
from headwater.cluster.work import USER_WORKS, WORKS, AddUser, ChangePassword, ChangeRoles, RemoveUser, WorkRun
from headwater.errors import OptionError, WorkRefused
from headwater.wire.users import UserList
from tests.cluster.nodes import at

ROOT = Account.create("r00t", read_grants("administer"))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[testing.Node]:
    file = tmp_path / "root"
    file.write_text("r00t")
    file.chmod(0o600)
    with testing.node(user="root", password_file=str(file), vbuckets=4) as running:
        yield running


def on(node: testing.Node, doing: Callable[..., Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with Members(user="root", password="r00t") as members:
            return await doing(members, at(node))

    return asyncio.run(run())


def do(node: testing.Node, work: Any, plan: Any = None) -> Any:
    return on(node, lambda members, seeds: work.run(members, seeds, WorkRun(plan=plan)))


def test_a_user_is_added_changed_and_removed_among_accounts_that_are_anywhere() -> None:
    accounts = {"root": ROOT}
    AddUser("ann", "read", "secret").edit(accounts)
    keys = accounts["ann"].keys
    ChangeRoles("ann", "read,write[orders]").edit(accounts)
    assert (accounts["ann"].grants, accounts["ann"].keys) == (read_grants("read,write[orders]"), keys)
    ChangePassword("ann", "other").edit(accounts)
    assert accounts["ann"].keys != keys
    RemoveUser("ann").edit(accounts)
    assert list(accounts) == ["root"]
    RemoveUser("root", force=True).edit(accounts)
    assert accounts == {}


def test_what_can_not_be_is_refused() -> None:
    for work, problem in (
        (AddUser("root", "read", "x"), "there is a user 'root'"),
        (AddUser("a:b", "read", "x"), "without a colon"),
        (AddUser("ann", "read", ""), "1 to 512 bytes"),
        (ChangeRoles("bob", "read"), "see: headwater user list"),
        (ChangeRoles("root", "read"), "no user would be left"),
        (ChangePassword("bob", "x"), "see: headwater user list"),
        (RemoveUser("root"), "no user would be left"),
    ):
        with pytest.raises((WorkRefused, OptionError), match=problem):
            work.edit({"root": ROOT})
    with pytest.raises(OptionError, match="king"):
        AddUser("ann", "king")


def test_a_password_is_in_no_text_about_the_work() -> None:
    work = AddUser("ann", "read", "se-cret")
    assert "se-cret" not in f"{work!r} {work.title} {work.outcome(1)}"


def test_no_work_on_users_has_a_plan_on_a_page() -> None:
    """The address of a plan has all its options, and so would have the password."""
    assert [kind.needs_password() for kind in USER_WORKS.values()] == [True, False, True, False]
    assert WORKS.keys() & {kind.KIND for kind in USER_WORKS.values()} == set()


def test_a_user_is_changed_on_a_node_unless_somebody_did_so_after_the_plan(node: testing.Node) -> None:
    assert do(node, AddUser("root", "administer", "r00t")).line == "root: administer"
    outcome = do(node, AddUser("ann", "read", "4nn"))
    assert (outcome.line, outcome.facts["roles"], outcome.facts["away"]) == ("ann: read", ["read"], [])
    shown = on(node, ChangeRoles("ann", "write").plan)
    do(node, ChangeRoles("ann", "monitor"))
    with pytest.raises(OptionError, match="it was changed since"):
        do(node, ChangeRoles("ann", "write"), shown)
    assert do(node, ChangeRoles("ann", "write")).line == "ann: write"
    assert do(node, RemoveUser("ann")).facts["left"] == 1


def test_the_outcome_names_the_nodes_that_have_the_change_and_those_that_will_ask_for_it() -> None:
    here, gone = ("10.0.0.1", 11210), ("10.0.0.2", 11210)
    outcome = RemoveUser("ann").outcome(0, Spread(UserList(), (here,), {gone: "refused"}))  # type: ignore[arg-type,dict-item]
    assert outcome.line == "ann is removed (on 1 node); nobody is left, and nobody comes in"
    assert "is away and asks the others when it is back (refused)" in outcome.details[0]
