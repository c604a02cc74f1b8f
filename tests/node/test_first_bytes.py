"""The protocol of a connection by its first bytes, in one piece or byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.node.first_bytes import FirstBytes
from headwater.node.kv.session import KvSession
from headwater.node.kv.text import TextSession
from headwater.node.rest.session import HttpSession
from headwater.node.users.logins import Users
from tests.node.support import Desk, FakeConnection, desk


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path) as made:
        yield made


def opened(one: Desk) -> Any:
    connection: Any = FakeConnection()
    connection.session = FirstBytes(connection, one)  # type: ignore[arg-type]
    return connection


def heard(connection: Any, data: bytes) -> object:
    """The session, once it was given all that has come so far after every byte."""
    for end in range(1, len(data) + 1):
        if isinstance(connection.session, FirstBytes):
            assert connection.session.receive(memoryview(data[:end])) == 0, "the bytes are for who comes after"
    return connection.session


@pytest.mark.parametrize("method", [b"GET ", b"POST ", b"PUT ", b"PATCH ", b"OPTIONS "])
def test_a_method_of_http_makes_it_an_http_connection_however_it_comes_in_pieces(one: Desk, method: bytes) -> None:
    connection = opened(one)
    assert isinstance(heard(connection, method[:-1]), FirstBytes), "it could still be something else"
    assert isinstance(heard(connection, method), HttpSession)


@pytest.mark.parametrize("first", [b"\x80", b"\x08", b"\x00", b"GETS", b"Q"])
def test_all_else_is_for_the_key_value_session_to_judge(one: Desk, first: bytes) -> None:
    assert type(heard(opened(one), first)) is KvSession


@pytest.mark.parametrize("first", [b"g", b"mn", b"version"])
def test_a_small_letter_begins_a_line_of_the_text_protocol(one: Desk, first: bytes) -> None:
    assert isinstance(heard(opened(one), first), TextSession)


def test_who_has_said_nothing_is_a_stranger_where_there_are_users(one: Desk) -> None:
    assert opened(one).is_known
    one.users = Users({"ann": "secret"})
    assert not opened(one).is_known
