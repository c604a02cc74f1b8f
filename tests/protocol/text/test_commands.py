"""Commands as the requests they become, and the silence of those that want no answer."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from headwater.protocol.text.commands import steps
from headwater.protocol.text.line import CommandReader, TextCommand
from headwater.protocol.text.words import Steps
from headwater.wire.documents import Get, GetResponse, Set, Stored
from headwater.wire.failure import Failure
from headwater.wire.layout import Answer, Request
from headwater.wire.meta import GetMeta, GetMetaResponse
from headwater.wire.status import Status


def asked(data: bytes) -> TextCommand:
    found = CommandReader().read(memoryview(data))
    assert found is not None
    return found


def carried_out(made: Steps, *answers: Answer | None) -> tuple[list[Request], bytes]:
    """The requests of a command, each answered with the next of `answers`, and the bytes it said."""
    requests: list[Request] = []
    said, heard, waiting = b"", None, list(answers)
    while True:
        try:
            step = made.send(heard)
        except StopIteration:
            return requests, said
        heard = None
        if isinstance(step, Request):
            requests.append(step)
            heard = waiting.pop(0)
        else:
            said += b"".join(step) if isinstance(step, tuple) else step


def test_a_command_is_declared_requests_and_their_answers_are_lines() -> None:
    made = steps(asked(b"set k 7 60 2\r\nhi\r\n"), 0)
    assert carried_out(made, Stored(cas=1)) == ([Set(key=b"k", value=b"hi", flags=7, expiration=60)], b"STORED\r\n")


def test_noreply_is_silence_but_the_request_is_made() -> None:
    requests, said = carried_out(steps(asked(b"set k 7 60 2 noreply\r\nhi\r\n"), 0), Failure(status=Status.ETMPFAIL))
    assert len(requests) == 1 and said == b""


def test_a_key_may_be_called_noreply() -> None:
    requests, said = carried_out(steps(asked(b"delete noreply\r\n"), 0), Stored())
    assert [request.key for request in requests] == [b"noreply"] and said == b"DELETED\r\n"
    assert carried_out(steps(asked(b"get noreply\r\n"), 0), GetResponse(flags=0))[1].startswith(b"VALUE noreply")


def test_no_request_is_made_of_a_line_whose_data_nobody_can_tell() -> None:
    for line in (b"set k 0 0 x\r\n", b"ms k\r\n", b"ms k 99999999999\r\n"):
        assert carried_out(steps(asked(line), 0)) == ([], b"CLIENT_ERROR bad command line format\r\n")


@pytest.mark.parametrize("line", [b"get k", b"mn", b"nonsense", b"", b"set k 0 0 1\r\nx", b"set k 0 0 99999999"])
def test_a_stranger_can_only_log_in(line: bytes) -> None:
    requests, said = carried_out(steps(asked(line + b"\r\n"), 0, is_stranger=True))
    assert requests == [] and said in (
        b"CLIENT_ERROR unauthenticated\r\n",
        b"CLIENT_ERROR bad authentication token format\r\n",
    )


def test_the_login_is_plain() -> None:
    made = steps(asked(b"set any 0 0 8\r\nann s3ct\r\n"), 0, is_stranger=True)
    requests, said = carried_out(made, Failure(status=Status.AUTH_ERROR))
    assert (requests[0].key, requests[0].value) == (b"PLAIN", b"\0ann\0s3ct")
    assert said == b"CLIENT_ERROR authentication failure\r\n"


@pytest.mark.parametrize("line", [b"get a b\r\n", b"gats 5 a b\r\n", b"mg a v t\r\n"])
def test_what_waits_for_a_reader_who_takes_nothing_holds_no_value(line: bytes) -> None:
    command, value = steps(asked(line), 0), bytes(100_000)
    step = next(command)
    while isinstance(step, Request):
        meta = GetMetaResponse(deleted=0, flags=0, expiration=9, rev_seqno=1)
        step = command.send(meta if isinstance(step, GetMeta) else GetResponse(flags=3, value=value, cas=9))
    assert isinstance(step, tuple) and step[1] is value
    waiting: Any = command
    while waiting is not None:
        kept = list(waiting.gi_frame.f_locals.values())
        kept += [getattr(each, "value", b"") for each in kept]
        assert not [each for each in kept if isinstance(each, bytes) and len(each) >= len(value)]
        waiting = waiting.gi_yieldfrom


def test_requests_of_many_keys_are_made_one_by_one() -> None:
    command = steps(asked(b"get" + b" k" * 50_000 + b"\r\n"), 0)
    before = sum(isinstance(each, Get) for each in gc.get_objects())
    assert isinstance(next(command), Get)
    assert sum(isinstance(each, Get) for each in gc.get_objects()) - before < 100
