"""The memcached family under one name; its layouts are held to the vectors in test_vectors.py."""

import pytest

from headwater.errors import BadMessage, LocalProtocolError
from headwater.wire import admin, bootstrap, documents, memcached, meta
from headwater.wire.dialect import Dialect, decode
from headwater.wire.header import Frame, Magic
from headwater.wire.opcodes import QUIET, Opcode


def test_all_four_files_are_found_under_one_name():
    for module in (bootstrap, documents, meta, admin):
        assert all(getattr(memcached, name) is getattr(module, name) for name in module.__all__)


def test_every_quiet_form_is_its_loud_form_under_another_opcode():
    requests = {
        each.layout.opcode: each
        for each in vars(memcached).values()
        if isinstance(each, type) and issubclass(each, documents.Request) and each.layout.magic == Magic.CLIENT_REQUEST
    }
    for quiet, loud in QUIET.items():
        assert requests[quiet].layout.fields == requests[loud].layout.fields
        assert requests[quiet].layout.extras == requests[loud].layout.extras


@pytest.mark.parametrize("length", [24, 26, 28, 30])
def test_with_meta_comes_in_four_lengths(length):
    frame = Frame(Magic.CLIENT_REQUEST, Opcode.SET_WITH_META, key=b"k", extras=bytes(length), value=b"v")
    message = decode(frame, Dialect.KV)
    assert (message.options is None, message.nmeta is None) == (length in (24, 26), length in (24, 28))
    assert message.encode() == frame.encode()


def test_with_meta_of_another_length_is_told():
    with pytest.raises(BadMessage, match="extras are 25 bytes, expected 24 or 26 or 28 or 30"):
        decode(Frame(Magic.CLIENT_REQUEST, Opcode.DEL_WITH_META, key=b"k", extras=bytes(25)), Dialect.KV)


@pytest.mark.parametrize(
    ("extras", "value", "cls"),
    [("01", "", admin.SetVbucket), ("00000001", "", admin.SetVbucketOld), ("", "00000001", admin.SetVbucketOldest)],
)
def test_a_vbuckets_state_comes_in_three_places(extras, value, cls):
    frame = Frame(Magic.CLIENT_REQUEST, 0x3D, extras=bytes.fromhex(extras), value=bytes.fromhex(value))
    message = decode(frame, Dialect.KV)
    assert type(message) is cls and message.state == 1 and message.encode() == frame.encode()


def test_an_epoch_may_be_minus_one():
    message = bootstrap.GetClusterConfig(epoch=-1, revision=37)
    assert message.frame().extras.hex() == "ffffffffffffffff0000000000000025"
    assert decode(message.encode(), Dialect.KV) == message


def test_the_server_may_ask_under_a_number_that_clients_use_otherwise():
    message = bootstrap.ClustermapChange(epoch=1, revision=2, key=b"default", value=b"{}")
    assert decode(message.encode(), Dialect.KV) == message
    assert decode(bootstrap.ClustermapChangeOld(revision=2).encode()) == bootstrap.ClustermapChangeOld(revision=2)


def test_features_are_two_bytes_each():
    with pytest.raises(BadMessage, match="2 bytes expected at offset 2 of 3"):
        decode(Frame(Magic.CLIENT_REQUEST, 0x1F, value=bytes(3)), Dialect.KV)


def test_a_key_list_has_two_byte_lengths():
    assert admin.GetKeysResponse(keys=[b"a", b"bc"]).frame().value == b"\x00\x01a\x00\x02bc"


def test_observing_names_keys_and_tells_states():
    asked = meta.Observe(keys=[(7, b"k")])
    assert asked.frame().value == b"\x00\x07\x00\x01k" and decode(asked.encode()) == asked
    told = meta.ObserveResponse(states=[(7, b"k", 0x80, 5)])
    assert told.frame().value == b"\x00\x07\x00\x01k\x80" + (5).to_bytes(8) and decode(told.encode()) == told


def test_a_state_that_does_not_exist_never_leaves():
    with pytest.raises(LocalProtocolError, match="state is 5, expected 1 or 2 or 3 or 4"):
        admin.SetVbucket(state=5).encode()
