"""Which list a member has after it was told one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from headwater.accounts.roles import read_grants
from headwater.accounts.users import Account
from headwater.node.users.file import UsersFile
from headwater.node.users.logins import Users
from headwater.node.users.sharing import ASK_SECONDS, Sharing, outcome
from headwater.protocol.handshake import Login
from headwater.wire.address import Address
from headwater.wire.users import UserEntry, UserList, UserListRefused

OURS, NOBODYS, ELSEWHERE = (
    UserList(cluster, {name: UserEntry(1, (), {})})
    for cluster, name in (("here", "ann"), ("", "bob"), ("there", "carl"))
)


def test_lists_of_one_cluster_become_one() -> None:
    told = UserList("here", {"dora": UserEntry(4, (), {})})
    made = outcome(OURS, told, "here")
    assert made is not None and list(made.users) == ["ann", "dora"] and made.cluster == "here"


def test_who_joins_has_the_clusters_list_in_the_place_of_his_own() -> None:
    assert outcome(NOBODYS, OURS, "here") == outcome(ELSEWHERE, OURS, "here") == OURS


def test_who_has_none_takes_what_he_is_told() -> None:
    assert outcome(None, OURS, "here") == OURS and outcome(None, NOBODYS, "") == NOBODYS


def test_a_list_that_is_not_the_clusters_changes_nothing() -> None:
    assert outcome(OURS, NOBODYS, "here") is outcome(OURS, ELSEWHERE, "here") is None
    assert outcome(NOBODYS, ELSEWHERE, "here") is outcome(NOBODYS, ELSEWHERE, "") is None


class Alone:
    """A node that is in no cluster."""

    map = None


def removing_root(tmp_path: Path, work: Callable[[Sharing, UserList], Awaitable[None]]) -> list[str]:
    """Give a node, whose only administrator is root, the list without him; returns who is left."""
    file = UsersFile(tmp_path)
    with file.editing() as accounts:
        accounts |= {
            name: Account.create("secret", read_grants(roles))
            for name, roles in (("root", "administer"), ("ann", "read"))
        }
    users = Users(file=file)
    users.refresh()
    assert users.list is not None

    async def story() -> None:
        loop = asyncio.get_running_loop()
        sharing = Sharing(loop, users, Alone, users.refresh, has_secret=True)  # type: ignore[arg-type]
        assert users.list is not None
        await work(sharing, users.list.without("root"))

    asyncio.run(story())
    return users.names


def test_a_list_that_leaves_nobody_who_administers_is_refused(tmp_path: Path) -> None:
    async def give(sharing: Sharing, told: UserList) -> None:
        with pytest.raises(UserListRefused, match="nobody would be left who administers"):
            await sharing.take(told.encode())

    assert removing_root(tmp_path, give) == ["ann", "root"]


def test_removals_at_once_that_leave_nobody_are_taken_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def hear(sharing: Sharing, told: UserList) -> None:
        await sharing._merge(told)

    assert removing_root(tmp_path, hear) == ["ann"]
    assert "nobody is left who administers all buckets" in caplog.text and "headwater user add --data" in caplog.text


class OneOfTwo(Alone):
    """A member of a cluster of two."""

    map = SimpleNamespace(this=0, uuid="here", peers=(Address("127.0.0.1", 1),))  # type: ignore[assignment]


@pytest.mark.parametrize("has_secret", [True, False])
def test_members_are_asked_for_users_where_there_is_a_secret_that_they_prove(
    tmp_path: Path, *, has_secret: bool
) -> None:
    """Without one whoever answers at a member's address could name himself administrator."""
    file = UsersFile(tmp_path)
    file.save({"root": Account.create("secret", read_grants("administer"))})
    users = Users(file=file)
    users.refresh()

    async def story() -> int:
        loop = asyncio.get_running_loop()
        sharing = Sharing(loop, users, OneOfTwo, lambda: None, has_secret=has_secret)  # type: ignore[arg-type]
        sharing.watch()
        asked = len(sharing._tasks)
        sharing.stop()
        return asked

    assert asyncio.run(story()) == int(has_secret)


class Member(Alone):
    """A member that answers each call once, and then hangs up."""

    def login(self) -> Login:
        return Login("test", "", None, None, "nonce")

    async def call(self, address: Address) -> socket.socket:
        return socket.socket()


def test_a_member_that_has_answered_is_asked_again_soon_however_often_it_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = list[float]()

    async def story() -> None:
        loop = asyncio.get_running_loop()
        sharing = Sharing(loop, Users(), Member, lambda: None, has_secret=True)  # type: ignore[arg-type]
        enough = asyncio.Event()

        async def hear(*_: object) -> bytes:
            return b""

        async def pause(seconds: float) -> None:
            if seconds == ASK_SECONDS:  # between two questions: the member is lost
                raise OSError
            waits.append(seconds)
            if len(waits) == 12:
                enough.set()
                await loop.create_future()

        monkeypatch.setattr(sharing, "_hear", hear)
        monkeypatch.setattr(asyncio, "sleep", pause)
        task = loop.create_task(sharing._ask_on(Address("127.0.0.1", 1)))
        await enough.wait()
        task.cancel()

    asyncio.run(story())
    assert max(waits) <= 2 * ASK_SECONDS
