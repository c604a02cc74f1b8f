"""Who may log in, from what was given at the start and from the file of the store."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import CorruptStore
from headwater.node.users import logins
from headwater.node.users.file import Account, UsersFile
from headwater.node.users.logins import FAILURES_FREE, WAITING_MAX, Failures, TooManyWait, Users
from headwater.node.users.roles import ADMINISTRATOR, read_grants
from headwater.node.users.scram import HASHES, derive
from headwater.wire.privilege import EVERYTHING, LOGIN, NONE, READ


def store(path: Path, **roles: str) -> UsersFile:
    file = UsersFile(path)
    with file.editing() as accounts:
        accounts.clear()
        accounts |= {name: Account.made("secret", read_grants(told)) for name, told in roles.items()}
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
        accounts["ann"] = Account.made("other", ())
    assert users.refresh() and not users.remembers("ann", "secret")
    assert not right(users, "ann", "secret") and right(users, "ann", "other")


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
        assert len({(each.iterations, len(each.salt), len(each.stored_key)) for each in keys.values()}) == 1
        assert len({each.salt for each in keys.values()}) == 3
        assert users.keys(name, "nobody").salt == keys["nobody"].salt


def test_keys_are_derived_once_before_anybody_asks() -> None:
    users = Users({"a": "x"})
    asyncio.run(users.derive_all())
    assert users.keys("sha512", "a") is users.keys("sha512", "a")


def test_an_address_that_fails_often_waits_longer_and_is_forgiven() -> None:
    failures = Failures()
    for _ in range(FAILURES_FREE):
        failures.add("a", 100.0)
    assert failures.delay("a", 100.0) == 0.0
    delays = []
    for _ in range(10):
        failures.add("a", 100.0)
        delays.append(failures.delay("a", 100.0))
    assert delays == sorted(delays) and delays[0] > 0 and delays[-1] == 2.0
    assert failures.delay("b", 100.0) == 0.0 and failures.delay("a", 160.0) == 0.0


def test_an_address_known_for_wrong_logins_is_judged_one_after_the_other_and_others_at_once() -> None:
    async def story() -> None:
        failures, at_once, most = Failures(), 0, 0

        async def attempt() -> bool:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0)
            at_once -= 1
            return True

        async def judge(address: str) -> None:
            assert await failures.judge(address, lambda: 100.0, attempt)

        await asyncio.gather(*(judge("good") for _ in range(10)))
        assert most == 10
        for _ in range(FAILURES_FREE + 1):
            failures.add("bad", 100.0)
        most = 0
        await asyncio.gather(*(judge("bad") for _ in range(WAITING_MAX)))
        assert most == 1
        with pytest.raises(TooManyWait, match="8 logins of its address wait"):
            await asyncio.gather(*(judge("bad") for _ in range(WAITING_MAX + 1)))

    asyncio.run(story())


def test_who_gives_up_waiting_leaves_the_line() -> None:
    async def story() -> None:
        failures = Failures()
        for _ in range(FAILURES_FREE + 1):
            failures.add("bad", 100.0)

        async def never() -> bool:
            await asyncio.sleep(60)
            return True

        async def right() -> bool:
            return True

        first = asyncio.ensure_future(failures.judge("bad", lambda: 100.0, never))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(failures.judge("bad", lambda: 100.0, right))
        await asyncio.sleep(0)
        first.cancel()
        assert await asyncio.wait_for(second, 120)

    asyncio.run(story())


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
