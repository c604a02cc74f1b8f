"""Failures in words: whose fault it was, and what happened."""

import pytest

from headwater.protocol.text.answers import failed, said, stat_line
from headwater.wire.bootstrap import StatResponse
from headwater.wire.failure import Failure
from headwater.wire.layout import Done
from headwater.wire.status import Status


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (Status.ETMPFAIL, b"SERVER_ERROR temporary failure: the disk is full\r\n"),
        (Status.LOCKED, b"SERVER_ERROR temporary failure: the disk is full\r\n"),
        (Status.NOT_MY_VBUCKET, b"SERVER_ERROR not my vbucket: the disk is full\r\n"),
        (Status.EACCESS, b"CLIENT_ERROR access denied: the disk is full\r\n"),
        (Status.EINVAL, b"CLIENT_ERROR invalid arguments: the disk is full\r\n"),
        (Status.E2BIG, b"SERVER_ERROR object too large for cache\r\n"),
        (Status.DELTA_BADVAL, b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
        (Status.AUTH_ERROR, b"CLIENT_ERROR authentication failure\r\n"),
        (Status.UNKNOWN_COMMAND, b"ERROR\r\n"),
        (Status.KEY_EEXISTS, b"SERVER_ERROR key_eexists: the disk is full\r\n"),
        (0xFF01, b"SERVER_ERROR 0xff01: the disk is full\r\n"),
    ],
)
def test_a_failure_is_one_line(status: int, line: bytes) -> None:
    assert failed(Failure(status=status, value=b"the\r\ndisk is  full")) == line


def test_a_status_that_the_command_knows_has_its_word() -> None:
    assert said(Done(), {Status.SUCCESS: b"OK\r\n"}) == b"OK\r\n"
    assert said(Failure(status=Status.ENOMEM), {Status.SUCCESS: b"OK\r\n"}) == b"SERVER_ERROR out of memory\r\n"
    assert said(None, {}) == b"SERVER_ERROR internal error\r\n"


def test_statistics_end_with_an_empty_one() -> None:
    assert stat_line(b"", StatResponse(key=b"pid", value=b"1")) == b"STAT pid 1\r\n"
    assert stat_line(b"", StatResponse()) == b"END\r\n" and stat_line(b"reset", StatResponse()) == b"RESET\r\n"
