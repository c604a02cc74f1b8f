"""The table of commands."""

import inspect
import re
from collections.abc import Iterator

import pytest

from headwater.node.kv.command import COMMANDS, Command, handles, refusal_of
from headwater.node.kv.rights import Rule
from headwater.node.refused import CommandRefused
from headwater.wire import admin, documents, meta
from headwater.wire.dialect import requests
from headwater.wire.header import Frame
from headwater.wire.layout import Request
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.support import handlers

assert handlers.ALL


def rules(*forms: type[Request], document: bool = True) -> Command:
    return Command(lambda session, request: None, forms, Rule(0), document, writes=False)


def test_a_handler_is_given_what_was_declared() -> None:
    request = rules(documents.GetLocked).read(Frame(0x80, Opcode.GET_LOCKED, b"k", bytes(3) + b"\7", vbucket=3))
    assert request == documents.GetLocked(key=b"k", lock_seconds=7, vbucket=3)


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (Frame(0x80, Opcode.GET_LOCKED, b"k", b"1"), "extras are 1 bytes, expected 0 or 4"),
        (Frame(0x80, Opcode.GET_LOCKED), "the key is 0 bytes, one is required"),
        (Frame(0x80, Opcode.GET_LOCKED, b"k", value=b"vv"), "the value is 2 bytes, none is expected"),
        (Frame(0x80, Opcode.GET_LOCKED, b"k", cas=1), "CAS"),
        (Frame(0x80, Opcode.GET_LOCKED, b"k" * 251), "251 bytes, 250 are allowed"),
    ],
)
def test_each_broken_rule_is_told_with_its_numbers(frame: Frame, told: str) -> None:
    with pytest.raises(CommandRefused) as caught:
        rules(documents.GetLocked).read(frame)
    assert caught.value.status == Status.EINVAL and told in caught.value.context


def test_what_old_clients_say_in_other_lengths_is_read_as_well() -> None:
    command = rules(admin.SetVbucket, admin.SetVbucketOld, admin.SetVbucketOldest, document=False)
    one, four = b"\1", b"\0\0\0\1"
    for told, expected in (
        (Frame(0x80, Opcode.SET_VBUCKET, extras=one), admin.SetVbucket(state=1)),
        (Frame(0x80, Opcode.SET_VBUCKET, extras=four), admin.SetVbucketOld(state=1)),
        (Frame(0x80, Opcode.SET_VBUCKET, value=four), admin.SetVbucketOldest(state=1)),
    ):
        assert command.read(told) == expected


def test_a_handler_that_passes_frames_on_is_given_them_as_they_are() -> None:
    frame = Frame(0x80, Opcode.DCP_OPEN, extras=b"anything")
    assert rules().read(frame) is frame


def test_a_quiet_form_has_the_handler_of_its_loud_one() -> None:
    for command in list(COMMANDS.values()):
        for layout in (form.layout for form in command.forms):
            assert all(COMMANDS[opcode] == command for opcode in layout.opcodes)
            assert {command.loud(opcode) for opcode in layout.opcodes} == {layout.opcode}


def test_a_quiet_form_leaves_out_what_its_declaration_says() -> None:
    stored, looked_up = rules(documents.Set), rules(meta.GetMeta)
    assert stored.silent == {Opcode.SETQ: Status.SUCCESS}
    assert looked_up.silent == {Opcode.GETQ_META: Status.KEY_ENOENT}


def test_a_declared_request_has_a_handler_or_says_how_it_is_refused() -> None:
    declared = {form for opcode in range(256) for form in requests(opcode)}
    refused = {each for each in declared if each.layout.refused}
    assert {each for each in declared if not each.layout.opcodes & COMMANDS.keys()} == refused
    assert refused >= {admin.StopPersistence} and len(declared) > 100


def test_what_is_declared_as_refused_takes_no_handler() -> None:
    with pytest.raises(TypeError, match="StopPersistence: declared as refused"):
        handles(admin.StopPersistence)


def test_what_has_no_handler_is_refused_as_declared_or_as_known_or_unknown() -> None:
    told = [refusal_of(opcode) for opcode in (Opcode.STOP_PERSISTENCE, Opcode.SHUTDOWN, 0xEE)]
    assert told == [Status.NOT_SUPPORTED, Status.NOT_SUPPORTED, Status.UNKNOWN_COMMAND]


def handled() -> Iterator[tuple[type[Request], Command]]:
    """Each declared request that has a handler, and that one."""
    for opcode, command in sorted(COMMANDS.items()):
        yield from ((form, command) for form in command.forms if form.layout.opcode == opcode)


@pytest.mark.parametrize(("request_type", "command"), list(handled()))
def test_a_handler_returns_what_its_request_is_declared_to_be_answered_with(
    request_type: type[Request], command: Command
) -> None:
    told = inspect.signature(command.handler).return_annotation
    returned = set(re.findall(r"\w+", re.sub(r"\w+\.", "", told))) - {"list", "Awaitable", "Iterator"}
    declared = {answer.__name__ for answer in request_type.layout.answers}
    assert returned and returned <= declared
