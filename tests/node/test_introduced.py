"""A call of another worker says first for whom it is."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headwater.node.introduced import IntroducedCall
from headwater.node.kv.relay import refusal
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from tests.node.support import FakeConnection, desk

WHO = {"peer": "10.0.0.9:5", "user": "ann", "bucket": "gone", "named_at": 0, "first_opaque": 0, "features": []}
FIRST = Frame(0x80, Opcode.HELLO, value=json.dumps(WHO).encode()).encode()


def test_half_an_introduction_is_waited_for_and_a_bucket_that_is_not_here_is_told() -> None:
    done: list[object] = []
    connection: Any = SimpleNamespace(send=done.append, finish=lambda: done.append("finished"))
    server: Any = SimpleNamespace(buckets={})
    call = IntroducedCall(connection, server, lambda: None)
    assert call.receive(memoryview(FIRST[:-1])) == 0 and not done
    assert call.receive(memoryview(FIRST + b"more")) == len(FIRST)
    assert done == [refusal(), "finished"]


def test_roles_are_looked_up_at_each_introduction(tmp_path: Path) -> None:
    with desk(tmp_path / "s") as here:
        looked: list[str] = []
        who = json.dumps(WHO | {"bucket": here.bucket.name}).encode()
        connection: Any = FakeConnection()
        call = IntroducedCall(connection, here, lambda: looked.append("users"))  # type: ignore[arg-type]
        assert here.users.knows("ann"), "who is known may have other roles by now"
        assert call.receive(memoryview(Frame(0x80, Opcode.HELLO, value=who).encode()))
        assert looked == ["users"] and connection.session.user == "ann"
