"""Who may send a request is said where it is declared."""

import pytest

from headwater.wire.dialect import requests
from headwater.wire.layout import Request
from headwater.wire.opcodes import Opcode
from headwater.wire.privilege import EVERYTHING, READ, WRITE, Privilege, in_words


def test_a_request_that_does_not_say_who_may_send_it_is_not_declared() -> None:
    with pytest.raises(TypeError, match="Forgetful does not say who may send it"):

        class Forgetful(Request, opcode=0x77):
            """Asks for something."""


def test_every_request_under_one_opcode_needs_the_same() -> None:
    declared = [found for opcode in range(256) if (found := requests(opcode))]
    assert len(declared) > 70
    for forms in declared:
        assert len({form.layout.privilege for form in forms}) == 1, forms


def test_a_quiet_form_needs_what_the_loud_one_needs() -> None:
    assert requests(Opcode.SETQ) == requests(Opcode.SET)


def test_a_privilege_is_said_in_words() -> None:
    assert in_words(READ | WRITE) == "read and write"
    assert in_words(0) == "nothing"


def test_everything_is_all_of_them() -> None:
    assert sum(Privilege) == EVERYTHING
