"""The table of commands."""

import pytest

from headwater.node.kv.command import COMMANDS, Command, Needs, Part, Refused
from headwater.wire.header import Frame
from headwater.wire.opcodes import QUIET
from tests.node.support import handlers


def rules(**changed: object) -> Command:
    given: dict[str, object] = {
        "handler": lambda session, frame: None,
        "extras": (0, 4),
        "key": Part.REQUIRED,
        "value": Part.FORBIDDEN,
        "cas": False,
        "needs": Needs.BUCKET,
        "document": True,
        "writes": False,
    }
    return Command(**{**given, **changed})  # type: ignore[arg-type]


def test_a_request_that_keeps_the_rules_passes() -> None:
    rules().check(Frame(0x80, 0, b"k"))
    rules(extras=None, value=Part.ANY, cas=True).check(Frame(0x80, 0, b"k", b"12345", b"v", cas=1))


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (Frame(0x80, 0, b"k", b"1"), "extras are 1 bytes, expected 0 or 4"),
        (Frame(0x80, 0), "the key is missing"),
        (Frame(0x80, 0, b"k", value=b"vv"), "a value of 2 bytes"),
        (Frame(0x80, 0, b"k", cas=1), "CAS"),
        (Frame(0x80, 0, b"k" * 251), "251 bytes, 250 are allowed"),
    ],
)
def test_each_broken_rule_is_told_with_its_numbers(frame: Frame, told: str) -> None:
    with pytest.raises(Refused) as caught:
        rules().check(frame)
    assert caught.value.status == 4 and told in caught.value.context


def test_a_quiet_form_has_the_handler_of_its_loud_one() -> None:
    assert handlers.ALL
    for quiet, loud in QUIET.items():
        assert COMMANDS[quiet] == COMMANDS[loud]
