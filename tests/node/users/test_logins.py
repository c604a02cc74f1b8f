"""Who may log in, from what was given at the start and from the file of the store."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from headwater.accounts.keys import HASHES, derive
from headwater.accounts.roles import ADMINISTRATOR, read_grants
from headwater.accounts.users import Account
from headwater.errors import CorruptStore
from headwater.node.users import logins
from headwater.node.users.failures import TooManyWait
from headwater.node.users.file import UsersFile
from headwater.node.users.logins import REFUSED_SECONDS, Users
from headwater.wire.privilege import EVERYTHING, LOGIN, NONE, READ


def store(path: Path, **roles: str) -> UsersFile:
    file = UsersFile(path)
    with file.editing() as accounts:
        accounts.clear()
        accounts |= {name: Account.create("secret", read_grants(told)) for name, told in roles.items()}
    return file


def right(users: Users, name: str, password: str) -> bool:
    return asyncio.run(users.is_right(name, password))


def test_without_users_everybody_may_do_everything() -> None:
    users = Users()
    assert not users.required and users.knows("anybody")
    assert users.rights(None, "b") == EVERYTHING and right(users, "anybody", "anything")


def test_without_users_scram_keeps_one_key_whoever_comes() -> None:
    users = Users()
    assert users.keys("sha1", "ann") is users.keys("sha1", "bob")


def test_users_given_at_the_start_and_those_of_the_file_come_in_with_their_rights(tmp_path: Path) -> None:
    users = Users({"root": "s3cret"}, {"root": ADMINISTRATOR}, store(tmp_path, ann="read:b"))
    assert users.refresh() and users.names == ["ann", "root"]
    assert users.rights("root", "b") == EVERYTHING
    assert (users.rights("ann", "b"), users.rights("ann", "other")) == (LOGIN | READ, LOGIN)
    assert users.rights("eve", "b") == users.rights(None, "b") == NONE
    assert right(users, "ann", "secret") and right(users, "root", "s3cret")
    assert not right(users, "ann", "s3cret") and not right(users, "eve", "secret") and not right(users, "ann", "")


def test_a_password_that_was_right_is_remembered_until_it_is_another(tmp_path: Path) -> None:
    file = store(tmp_path, ann="read")
    users = Users(file=file)
    users.refresh()
    assert not users.remembers("ann", "secret")
    assert right(users, "ann", "secret") and users.remembers("ann", "secret") and not users.remembers("ann", "other")
    with file.editing() as accounts:
        accounts["ann"] = Account.create("other", ())
    assert users.refresh() and not users.remembers("ann", "secret")
    assert not right(users, "ann", "secret") and right(users, "ann", "other")


def test_a_list_that_was_refused_is_not_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = store(tmp_path, ann="read")
    users = Users(file=file)
    users.refresh()
    with file.editing() as accounts:
        accounts.clear()
    with monkeypatch.context() as refused:
        refused.setattr(UsersFile, "unsure", True)
        assert not users.refresh() and users.names == ["ann"]
    assert users.refresh() and users.names == []


def test_the_file_is_read_when_it_is_another_one_and_its_removal_lets_nobody_in(tmp_path: Path) -> None:
    file = store(tmp_path, ann="read")
    users = Users(file=file)
    assert users.refresh() and not users.refresh()
    file.path.unlink()
    assert not users.refresh() and users.required and users.knows("ann")
    store(tmp_path)
    assert users.refresh() and users.required and users.names == []


def test_a_damaged_file_is_told_once_and_changes_nothing(tmp_path: Path) -> None:
    file = store(tmp_path, ann="read")
    users = Users(file=file)
    users.refresh()
    file.path.write_bytes(file.path.read_bytes()[:-9])
    with pytest.raises(CorruptStore):
        users.refresh()
    assert not users.refresh() and users.knows("ann")


def test_an_unknown_user_gets_keys_like_any_other_with_a_salt_that_stays(tmp_path: Path) -> None:
    users = Users({"a": "x"}, file=store(tmp_path, ann="read"))
    users.refresh()
    for name in HASHES:
        keys = {user: users.keys(name, user) for user in ("a", "ann", "nobody")}
        assert len({(key.iterations, len(key.salt), len(key.stored_key)) for key in keys.values()}) == 1
        assert len({key.salt for key in keys.values()}) == 3
        assert users.keys(name, "nobody").salt == keys["nobody"].salt


def test_keys_are_derived_once_before_anybody_asks() -> None:
    users = Users({"a": "x"})
    asyncio.run(users.derive_all())
    assert users.keys("sha512", "a") is users.keys("sha512", "a")


def test_a_wrong_password_is_known_for_one_without_work_until_the_users_change(tmp_path: Path) -> None:
    now = [100.0]
    users = Users({"root": "first"}, file=store(tmp_path, ann="read"), clock=lambda: now[0])
    users.refresh()

    async def story() -> None:
        for name, wrong in (("ann", "yesterday's"), ("root", "yesterday's"), ("nobody", "yesterday's")):
            assert not users.was_refused(name, wrong)
            assert not await users.is_right(name, wrong)
            assert users.was_refused(name, wrong) and not users.was_refused(name, "another")
        now[0] += REFUSED_SECONDS
        assert not users.was_refused("ann", "yesterday's")
        assert not await users.is_right("ann", "today's")
        with UsersFile(tmp_path).editing() as accounts:
            accounts["ann"] = Account.create("today's", read_grants("read"))
        users.refresh()
        assert not users.was_refused("ann", "today's") and await users.is_right("ann", "today's")

    asyncio.run(story())


def test_a_password_that_becomes_right_while_it_is_judged_is_not_remembered_as_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = Users(file=store(tmp_path, ann="read"))
    users.refresh()
    judged = users._keys_if_right

    def changed_meanwhile(user: str, password: str) -> object:
        found = judged(user, password)
        with UsersFile(tmp_path).editing() as accounts:
            accounts["ann"] = Account.create("today's", read_grants("read"))
        users.refresh()
        return found

    async def story() -> None:
        monkeypatch.setattr(users, "_keys_if_right", changed_meanwhile)
        assert not await users.is_right("ann", "today's")
        monkeypatch.setattr(users, "_keys_if_right", judged)
        assert await users.is_right("ann", "today's")

    asyncio.run(story())


def test_a_password_that_becomes_wrong_while_it_is_judged_lets_nobody_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = Users(file=store(tmp_path, ann="read"))
    users.refresh()
    judged = users._keys_if_right

    def changed_meanwhile(user: str, password: str) -> object:
        found = judged(user, password)
        with UsersFile(tmp_path).editing() as accounts:
            accounts["ann"] = Account.create("today's", read_grants("read"))
        users.refresh()
        return found

    monkeypatch.setattr(users, "_keys_if_right", changed_meanwhile)
    assert not right(users, "ann", "secret")


def test_wrong_passwords_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "REFUSED_MAX", 3)
    users = Users({"ann": "secret"})

    async def story() -> None:
        for number in range(4):
            assert not await users.is_right("ann", f"guess {number}")

    asyncio.run(story())
    assert [users.was_refused("ann", f"guess {number}") for number in range(4)] == [False, True, True, True]


def test_a_flood_of_logins_has_threads_of_its_own_and_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()

    def held(*told: Any) -> Any:
        assert may_end.wait(60)
        return derive(*told)

    async def story() -> None:
        users = Users({"ann": "secret"})
        waiting = [asyncio.ensure_future(users.is_right("ann", f"guess {number}")) for number in range(4)]
        while users.derivations.waiting < 4:
            await asyncio.sleep(0)
        with pytest.raises(TooManyWait, match="4 logins wait"):
            await users.is_right("ann", "one more")
        with pytest.raises(TooManyWait, match="4 logins wait"):
            await users.keys_for("sha512", "ann")
        others = await asyncio.gather(*(asyncio.to_thread(str, number) for number in range(50)))
        assert others == [str(number) for number in range(50)]
        may_end.set()
        assert await asyncio.gather(*waiting) == [False] * 4
        assert users.derivations.waiting == 0 and await users.is_right("ann", "secret")

    monkeypatch.setattr(logins, "DERIVED_MAX", 4)
    monkeypatch.setattr(logins, "derive", held)
    try:
        asyncio.run(story())
    finally:
        may_end.set()


def test_a_user_of_the_file_begins_scram_without_any_thread(tmp_path: Path) -> None:
    users = Users(file=store(tmp_path, ann="read"))
    users.refresh()
    assert asyncio.run(users.keys_for("sha512", "ann")) is users.keys("sha512", "ann")
    assert asyncio.run(users.keys_for("sha512", "nobody")).salt == users.keys("sha512", "nobody").salt
    assert users.derivations.waiting == 0
