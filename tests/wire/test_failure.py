"""Answers that are no success."""

import pytest

from headwater import errors
from headwater.wire.dialect import decode
from headwater.wire.failure import Failure
from headwater.wire.header import Frame, Magic

NOT_FOUND = bytes.fromhex("810000000000000100000009000000000000000000000000") + b"Not found"


def test_the_not_found_of_the_specification():
    answer = Failure(opcode=0x00, status=0x01, value=b"Not found")
    assert answer.encode() == NOT_FOUND and decode(NOT_FOUND) == answer


def test_a_failure_becomes_the_error_to_raise():
    error = decode(NOT_FOUND).error('get "k1"')
    assert isinstance(error, errors.KeyNotFound)
    assert str(error) == ('get "k1": Not found: KEY_ENOENT (status 0x01): There is no such document.')
    assert Failure(opcode=0, status=0x86).error("set").context == "set"


def test_success_is_no_failure():
    with pytest.raises(errors.BadMessage, match="status is 0x00, which is no failure"):
        Failure.decode(Frame(Magic.CLIENT_RESPONSE, 0x00))
