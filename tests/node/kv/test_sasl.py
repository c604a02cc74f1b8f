"""Logging in, with and without configured users."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.accounts.users import Account
from headwater.node.config import NodeConfig
from headwater.node.kv.sasl import MECHANISMS
from headwater.node.users.file import UsersFile
from headwater.node.users.logins import Users
from headwater.protocol.scram import Scram, plain
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from tests.node.support import Desk, Talk, desk

LIST, AUTH, STEP, NOOP, GET = 0x20, 0x21, 0x22, 0x0A, 0x00


def run(path: Path, story: Callable[[Talk], Awaitable[None]], **users: str) -> None:
    async def main(counter: Desk) -> None:
        counter.loop = asyncio.get_running_loop()
        await story(counter.session())

    with desk(path / "s", config=NodeConfig(vbuckets=4, users=users)) as counter:
        asyncio.run(main(counter))


async def ask(talk: Talk, opcode: int, **sections: object) -> Frame:
    """One answer, also of a command that parks the connection."""
    talk.give(Frame(0x80, opcode, **sections).encode())  # type: ignore[arg-type]
    while talk.connection.is_paused:
        await asyncio.sleep(0)
    (answer,) = FrameBuffer().receive_data(talk.bytes_sent())
    return answer


def test_before_login_only_the_handshake_is_served(tmp_path: Path) -> None:
    async def story(talk: Talk) -> None:
        assert (await ask(talk, LIST)).value == b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN"
        assert (await ask(talk, NOOP)).status == 0
        for opcode in (GET, 0x01, 0x10, 0x89, 0x48, 0xB5, 0x50, 0xEE):
            assert (await ask(talk, opcode, key=b"k")).status == 0x24

    run(tmp_path, story, ann="secret")


def test_plain_lets_the_right_password_in_and_selects_the_bucket(tmp_path: Path) -> None:
    async def story(talk: Talk) -> None:
        for user, password in (("ann", "wrong"), ("bob", "secret"), ("ann", ""), ("", "")):
            assert (await ask(talk, AUTH, key=b"PLAIN", value=plain(user, password))).status == 0x20
        assert (await ask(talk, AUTH, key=b"PLAIN", value=plain("ann", "secret"))).status == 0
        assert (await ask(talk, GET, key=b"k")).status == 1

    run(tmp_path, story, ann="secret")


@pytest.mark.parametrize("mechanism", [name for name in MECHANISMS if name != "PLAIN"])
def test_scram_lets_the_right_password_in(tmp_path: Path, mechanism: str) -> None:
    async def story(talk: Talk) -> None:
        key = mechanism.encode()
        client = Scram(mechanism, "ann", "secret", "nonce")
        challenge = await ask(talk, AUTH, key=key, value=client.first())
        assert challenge.status == 0x21
        outcome = await ask(talk, STEP, key=key, value=client.final(challenge.value))
        assert outcome.status == 0
        client.verify(outcome.value)
        assert talk.kv.user == "ann"

    run(tmp_path, story, ann="secret")


def test_an_unknown_user_gets_a_challenge_like_any_other_and_fails_in_the_end(tmp_path: Path) -> None:
    async def story(talk: Talk) -> None:
        salts = []
        for _ in range(2):
            client = Scram("SCRAM-SHA256", "nobody", "guess", "nonce")
            challenge = await ask(talk, AUTH, key=b"SCRAM-SHA256", value=client.first())
            salts.append(challenge.value.split(b",")[1])
            final = client.final(challenge.value)
            assert (await ask(talk, STEP, key=b"SCRAM-SHA256", value=final)).status == 0x20
        assert salts[0] == salts[1]

    run(tmp_path, story, ann="secret")


def test_a_failed_login_on_a_logged_in_connection_makes_it_nobody(tmp_path: Path) -> None:
    async def story(talk: Talk) -> None:
        await ask(talk, AUTH, key=b"PLAIN", value=plain("ann", "secret"))
        assert (await ask(talk, AUTH, key=b"PLAIN", value=plain("ann", "wrong"))).status == 0x20
        assert (await ask(talk, GET, key=b"k")).status == 0x24

    run(tmp_path, story, ann="secret")


def test_a_proof_that_was_heard_lets_nobody_in_again(tmp_path: Path) -> None:
    async def story(talk: Talk) -> None:
        client = Scram("SCRAM-SHA512", "ann", "secret", "nonce")
        challenge = await ask(talk, AUTH, key=b"SCRAM-SHA512", value=client.first())
        final = client.final(challenge.value)
        assert (await ask(talk, STEP, key=b"SCRAM-SHA512", value=final)).status == 0
        assert (await ask(talk, STEP, key=b"SCRAM-SHA512", value=final)).status == 4, "there is no exchange any more"
        again = await ask(talk, AUTH, key=b"SCRAM-SHA512", value=client.first())
        assert again.status == 0x21 and again.value != challenge.value
        assert (await ask(talk, STEP, key=b"SCRAM-SHA512", value=final)).status == 0x20
        assert (await ask(talk, GET, key=b"k")).status == 0x24

    run(tmp_path, story, ann="secret")


def another(file: UsersFile) -> None:
    with file.editing() as accounts:
        accounts["ann"] = Account.create("other", ())


def nobody(file: UsersFile) -> None:
    with file.editing() as accounts:
        del accounts["ann"]


@pytest.mark.parametrize("change", [another, nobody])
def test_a_password_that_was_taken_away_amid_an_exchange_lets_nobody_in(
    tmp_path: Path, change: Callable[[UsersFile], None]
) -> None:
    file = UsersFile(tmp_path)
    with file.editing() as accounts:
        accounts["ann"] = Account.create("secret", ())

    async def story(counter: Desk) -> None:
        counter.loop, counter.users = asyncio.get_running_loop(), Users(file=file)
        counter.users.refresh()
        talk, client = counter.session(), Scram("SCRAM-SHA256", "ann", "secret", "nonce")
        challenge = await ask(talk, AUTH, key=b"SCRAM-SHA256", value=client.first())
        change(file)
        assert counter.users.refresh()
        talk.kv.users_changed()
        outcome = await ask(talk, STEP, key=b"SCRAM-SHA256", value=client.final(challenge.value))
        assert (outcome.status, talk.kv.user) == (0x20, None)

    with desk(tmp_path / "s") as counter:
        asyncio.run(story(counter))


def test_steps_out_of_order_let_nobody_in_and_an_exchange_can_be_begun_anew(tmp_path: Path) -> None:
    async def story(talk: Talk) -> None:
        first = Scram("SCRAM-SHA1", "ann", "secret", "one")
        challenge = await ask(talk, AUTH, key=b"SCRAM-SHA1", value=first.first())
        assert (await ask(talk, STEP, key=b"SCRAM-SHA256", value=first.final(challenge.value))).status == 4
        assert (await ask(talk, STEP, key=b"SCRAM-SHA1", value=first.final(challenge.value))).status == 4
        second = Scram("SCRAM-SHA1", "ann", "secret", "two")
        await ask(talk, AUTH, key=b"SCRAM-SHA1", value=first.first())
        challenge = await ask(talk, AUTH, key=b"SCRAM-SHA1", value=second.first())
        assert (await ask(talk, GET, key=b"k")).status == 0x24
        assert (await ask(talk, STEP, key=b"SCRAM-SHA1", value=second.final(challenge.value))).status == 0
        assert (await ask(talk, GET, key=b"k")).status == 1

    run(tmp_path, story, ann="secret")


@pytest.mark.parametrize(
    ("mechanism", "value"),
    [
        (b"PLAIN", plain("ann", "s" * 1_000_000)),
        (b"PLAIN", b"\0" * 1_000_000),
        (b"SCRAM-SHA512", b"n,,n=ann,r=" + b"\xff" * 1_000_000),
        (b"SCRAM-SHA512", b"=" * 1_000_000),
    ],
)
def test_a_login_of_a_megabyte_is_wrong_as_any(tmp_path: Path, mechanism: bytes, value: bytes) -> None:
    """Of a user who has logged in: nobody else's frame may be so long (tests/faults/test_strangers.py)."""

    async def story(talk: Talk) -> None:
        await ask(talk, AUTH, key=b"PLAIN", value=plain("ann", "secret"))
        assert (await ask(talk, AUTH, key=mechanism, value=value)).status == 0x20
        assert (await ask(talk, GET, key=b"k")).status == 0x24
        assert (await ask(talk, AUTH, key=b"PLAIN", value=plain("ann", "secret"))).status == 0

    run(tmp_path, story, ann="secret")


def test_keys_are_derived_beside_the_loop_which_serves_others_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(talk: Talk) -> None:
        users, begun, may_end = talk.kv.server.users, threading.Event(), threading.Event()
        derived = users.keys

        def keys(hash_name: str, user: str) -> Any:
            begun.set()
            assert may_end.wait(60)
            return derived(hash_name, user)

        monkeypatch.setattr(users, "keys", keys)
        client = Scram("SCRAM-SHA512", "ann", "secret", "nonce")
        waiting = asyncio.ensure_future(ask(talk, AUTH, key=b"SCRAM-SHA512", value=client.first()))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        other = talk.kv.server.session()  # type: ignore[attr-defined]
        assert (await ask(other, NOOP)).status == 0 and not waiting.done()
        may_end.set()
        assert (await waiting).status == 0x21

    run(tmp_path, story, ann="secret")


def test_a_step_without_a_beginning_is_einval_and_unknown_mechanisms_fail(tmp_path: Path) -> None:
    async def story(talk: Talk) -> None:
        assert (await ask(talk, STEP, key=b"SCRAM-SHA1", value=b"x")).status == 4
        assert (await ask(talk, AUTH, key=b"CRAM-MD5", value=b"")).status == 0x20
        assert (await ask(talk, AUTH, key=b"PLAIN", value=b"no zeros")).status == 0x20
        assert (await ask(talk, AUTH, key=b"SCRAM-SHA1", value=b"\xff")).status == 0x20

    run(tmp_path, story, ann="secret")


def test_without_users_every_plain_login_and_none_at_all_will_do(tmp_path: Path) -> None:
    async def story(talk: Talk) -> None:
        assert (await ask(talk, GET, key=b"k")).status == 1
        assert (await ask(talk, AUTH, key=b"PLAIN", value=plain("anybody", "anything"))).status == 0
        assert (await ask(talk, GET, key=b"k")).status == 1

    run(tmp_path, story)


@pytest.mark.parametrize("mechanism", [name for name in MECHANISMS if name != "PLAIN"])
def test_without_users_scram_lets_everybody_in_who_says_password(tmp_path: Path, mechanism: str) -> None:
    async def story(talk: Talk) -> None:
        for user, password, status in (("ann", "password", 0), ("bob", "password", 0), ("ann", "secret", 0x20)):
            client = Scram(mechanism, user, password, "nonce")
            challenge = await ask(talk, AUTH, key=mechanism.encode(), value=client.first())
            outcome = await ask(talk, STEP, key=mechanism.encode(), value=client.final(challenge.value))
            assert outcome.status == status
            if status == 0:
                client.verify(outcome.value)
                assert talk.kv.user == user
        assert talk.desk.warnings == [
            "login refused: on a node without users SCRAM needs the password 'password'; or start it with --user"
            f" (user {user!r})"
        ]

    run(tmp_path, story)


def test_from_another_machine_no_password_is_taken_as_it_is(tmp_path: Path) -> None:
    async def story(talk: Talk) -> None:
        talk.connection.peer = "10.0.0.7:5"
        assert (await ask(talk, LIST)).value == b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1"
        assert (await ask(talk, AUTH, key=b"PLAIN", value=plain("ann", "secret"))).status == 0x20
        assert "--plain anywhere takes it" in talk.desk.warnings[-1]
        client = Scram("SCRAM-SHA256", "ann", "secret", "nonce")
        challenge = await ask(talk, AUTH, key=b"SCRAM-SHA256", value=client.first())
        assert (await ask(talk, STEP, key=b"SCRAM-SHA256", value=client.final(challenge.value))).status == 0

    run(tmp_path, story, ann="secret")


def test_the_password_that_everybody_knows_is_good_on_this_machine_only(tmp_path: Path) -> None:
    async def story(talk: Talk) -> None:
        talk.connection.peer = "10.0.0.7:5"
        assert (await ask(talk, LIST)).value == b"PLAIN"
        client = Scram("SCRAM-SHA256", "ann", "password", "nonce")
        assert (await ask(talk, AUTH, key=b"SCRAM-SHA256", value=client.first())).status == 0x20
        assert (await ask(talk, AUTH, key=b"PLAIN", value=plain("ann", "any"))).status == 0

    run(tmp_path, story)


def test_passwords_never_reach_the_log(tmp_path: Path) -> None:
    async def story(talk: Talk) -> None:
        await ask(talk, AUTH, key=b"PLAIN", value=plain("ann", "hunter2"))
        assert talk.desk.warnings == ["login refused: wrong name or password (user 'ann')"]

    run(tmp_path, story, ann="secret")
