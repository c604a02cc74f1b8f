"""A call of another worker says first for whom it is."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from headwater.node.introduced import IntroducedCall
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode

WHO = {"peer": "10.0.0.9:5", "user": "ann", "bucket": "gone", "features": []}
FIRST = Frame(0x80, Opcode.HELLO, value=json.dumps(WHO).encode()).encode()


def test_half_an_introduction_is_waited_for_and_a_bucket_that_is_gone_ends_the_call() -> None:
    dropped: list[str] = []
    connection: Any = SimpleNamespace(drop=lambda cause, fault: dropped.append(cause))
    server: Any = SimpleNamespace(buckets={})
    call = IntroducedCall(connection, server, lambda: None)
    assert call.receive(memoryview(FIRST[:-1])) == 0 and not dropped
    assert call.receive(memoryview(FIRST + b"more")) == len(FIRST)
    assert dropped == ["bucket 'gone' is not here any more"]
