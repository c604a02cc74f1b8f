"""Meta commands whose answers are not those that were hoped for; the rest is in tests/node/kv/test_text.py."""

import pytest

from headwater.protocol.text.commands import steps
from headwater.wire.documents import Add, Append, Decrement, GetResponse, IncrementResponse, Replace, Set, Stored
from headwater.wire.failure import Failure
from headwater.wire.meta import GetMetaResponse
from headwater.wire.status import Status
from tests.protocol.text.test_commands import asked, carried_out

NOW = 1_700_000_000
BUSY = Failure(status=Status.ETMPFAIL, value=b"later")
HIT = GetResponse(flags=3, value=b"x", cas=9)


def meta(expiration: int) -> GetMetaResponse:
    return GetMetaResponse(deleted=0, flags=0, expiration=expiration, rev_seqno=1)


@pytest.mark.parametrize(
    "line", [b"mg a", b"mg a q", b"ms a 1 q\r\nx", b"ms a 1 C0\r\nx", b"md a q", b"md a C0", b"ma a q", b"me a"]
)
def test_every_command_tells_a_temporary_failure_the_quiet_ones_too(line: bytes) -> None:
    said = carried_out(steps(asked(line + b"\r\n"), NOW), BUSY)[1]
    assert said == b"SERVER_ERROR temporary failure: later\r\n"


@pytest.mark.parametrize("line", [b"ms a 1 C5 q\r\nx", b"ms a 1 C0 q\r\nx", b"ma a q"])
@pytest.mark.parametrize("opaque", [b"", b" O7"])
def test_what_was_not_written_is_told_to_the_quiet_as_well(line: bytes, opaque: bytes) -> None:
    """A quiet client takes silence for "written"."""
    line = line.replace(b" q", b" q" + opaque)
    said = carried_out(steps(asked(line + b"\r\n"), NOW), Failure(status=Status.KEY_ENOENT))[1]
    assert said == b"NF" + opaque + b"\r\n"


@pytest.mark.parametrize("line", [b"md a q", b"md a C5 q", b"md a C0 q", b"mg a q"])
def test_to_the_quiet_it_is_all_the_same_whether_what_they_delete_was_there(line: bytes) -> None:
    assert carried_out(steps(asked(line + b"\r\n"), NOW), Failure(status=Status.KEY_ENOENT))[1] == b""


def test_flags_are_answered_in_the_order_in_which_they_were_asked() -> None:
    said = carried_out(steps(asked(b"mg a s k f O-1 c v\r\n"), NOW), HIT)[1]
    assert said == b"VA 1 s1 ka f3 O-1 c9\r\nx\r\n"


@pytest.mark.parametrize(("expiry", "left"), [(0, b"t-1"), (NOW + 30, b"t30"), (NOW - 5, b"t0")])
def test_the_time_left_is_told_by_the_time_that_was_given(expiry: int, left: bytes) -> None:
    assert carried_out(steps(asked(b"mg a t\r\n"), NOW), HIT, meta(expiry))[1] == b"HD " + left + b"\r\n"


@pytest.mark.parametrize(
    ("mode", "request_of"),
    [
        (b"", Set(key=b"a", value=b"x", flags=1, expiration=2, cas=3)),
        (b" MS", Set(key=b"a", value=b"x", flags=1, expiration=2, cas=3)),
        (b" Mset", Set(key=b"a", value=b"x", flags=1, expiration=2, cas=3)),
        (b" MR", Replace(key=b"a", value=b"x", flags=1, expiration=2, cas=3)),
        (b" Ma", Append(key=b"a", value=b"x", cas=3)),
    ],
)
def test_a_mode_is_a_request(mode: bytes, request_of: object) -> None:
    line = b"ms a 1 F1 T2 C3" + mode + b"\r\nx\r\n"
    assert carried_out(steps(asked(line), NOW), Stored(cas=4)) == ([request_of], b"HD\r\n")


def test_appending_makes_what_is_not_there_when_told_so() -> None:
    missing = Failure(status=Status.NOT_STORED)
    requests, said = carried_out(steps(asked(b"ms a 1 MA N60 F5 c\r\nx\r\n"), NOW), missing, Stored(cas=4))
    assert requests[1] == Add(key=b"a", value=b"x", flags=5, expiration=60) and said == b"HD c4\r\n"


def test_a_cas_of_zero_deletes_nothing() -> None:
    requests, said = carried_out(steps(asked(b"md a C0 k\r\n"), NOW), HIT)
    assert [type(request).__name__ for request in requests] == ["Get"] and said == b"EX ka\r\n"


def test_a_counter_goes_down_and_tells_its_digits() -> None:
    requests, said = carried_out(steps(asked(b"ma a MD D5 v\r\n"), NOW), IncrementResponse(counter=10))
    assert requests == [Decrement(key=b"a", delta=5, initial=0, expiration=0xFFFF_FFFF)] and said == b"VA 2\r\n10\r\n"


def test_base64_decodes_to_a_key_of_any_bytes() -> None:
    requests, said = carried_out(steps(asked(b"mg AAEg/w== b k v\r\n"), NOW), HIT)
    assert requests[0].key == b"\x00\x01 \xff" and said == b"VA 1 b kAAEg/w==\r\nx\r\n"
