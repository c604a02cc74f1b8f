"""Classic commands whose answers are not those that were hoped for; the rest is in tests/node/kv/test_text.py."""

import pytest

from headwater.protocol.text.commands import steps
from headwater.wire.documents import GetAndTouch, GetResponse, Increment
from headwater.wire.failure import Failure
from headwater.wire.layout import Done
from headwater.wire.status import Status
from tests.protocol.text.test_commands import asked, carried_out

MISSING, BUSY = Failure(status=Status.KEY_ENOENT), Failure(status=Status.ETMPFAIL, value=b"later")
HIT = GetResponse(flags=3, value=b"x", cas=9)


def test_an_error_takes_the_place_of_the_end_so_that_no_key_seems_to_be_missing() -> None:
    requests, said = carried_out(steps(asked(b"gets a b c d\r\n"), 0), HIT, MISSING, BUSY)
    assert len(requests) == 3 and said == b"VALUE a 3 1 9\r\nx\r\nSERVER_ERROR temporary failure: later\r\n"


def test_all_keys_are_looked_at_before_the_first_one_is_asked_for() -> None:
    line = b"get a " + b"k" * 251 + b"\r\n"
    assert carried_out(steps(asked(line), 0)) == ([], b"CLIENT_ERROR bad command line format\r\n")


def test_get_and_touch_sets_the_expiry_of_each() -> None:
    requests, _ = carried_out(steps(asked(b"gat 5 a b\r\n"), 0), HIT, HIT)
    assert requests == [GetAndTouch(key=b"a", expiration=5), GetAndTouch(key=b"b", expiration=5)]


def test_a_counter_is_never_made_by_counting() -> None:
    requests, said = carried_out(steps(asked(b"incr a 5\r\n"), 0), MISSING)
    assert requests == [Increment(key=b"a", delta=5, initial=0, expiration=0xFFFF_FFFF)] and said == b"NOT_FOUND\r\n"


def test_a_cas_of_zero_changes_nothing_where_a_request_would_take_it_for_none() -> None:
    for answer, line in (
        (HIT, b"EXISTS\r\n"),
        (MISSING, b"NOT_FOUND\r\n"),
        (BUSY, b"SERVER_ERROR temporary failure: later\r\n"),
    ):
        requests, said = carried_out(steps(asked(b"cas a 0 0 1 0\r\nx\r\n"), 0), answer)
        assert [type(request).__name__ for request in requests] == ["Get"] and said == line


@pytest.mark.parametrize(
    "line",
    [b"set a 0 0 1\r\nx", b"delete a", b"touch a 1", b"incr a 1", b"get a", b"flush_all", b"version", b"verbosity 1"],
)
def test_every_command_tells_a_temporary_failure(line: bytes) -> None:
    assert carried_out(steps(asked(line + b"\r\n"), 0), BUSY)[1] == b"SERVER_ERROR temporary failure: later\r\n"


def test_flush_all_takes_a_delay_and_a_negative_one_for_now() -> None:
    for line, expiration in ((b"flush_all", 0), (b"flush_all 30", 30), (b"flush_all -1", 0)):
        requests, said = carried_out(steps(asked(line + b"\r\n"), 0), Done())
        assert requests[0].__dict__["expiration"] == expiration and said == b"OK\r\n"


def test_quit_says_nothing() -> None:
    assert carried_out(steps(asked(b"quit\r\n"), 0), Done())[1] == b""
