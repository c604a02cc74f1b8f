"""Documents, metadata, administration, bootstrap; their layouts are held to the vectors in test_vectors.py."""

import dataclasses

import pytest

from headwater.errors import BadMessage, LocalProtocolError
from headwater.wire import admin, bootstrap, documents, meta
from headwater.wire.dialect import Dialect, decode, messages
from headwater.wire.header import Frame, Magic
from headwater.wire.layout import NO_OPCODE
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status


def test_every_quiet_form_is_declared_with_the_loud_one_that_it_is_named_after():
    layouts = [message.layout for module in (bootstrap, documents, meta, admin) for message in messages(module)]
    declared = {Opcode(layout.quiet): Opcode(layout.opcode) for layout in layouts if layout.quiet != NO_OPCODE}
    named = {"Q".join(parts) for each in Opcode for parts in _cuts(each.name)}
    assert {each.name for each in declared} == {each.name for each in Opcode} & named
    assert all(quiet.name.replace("Q", "", 1) == loud.name for quiet, loud in declared.items() if loud.name != "QUIT")


def _cuts(name):
    """Where a Q may stand in the name of a quiet form: at the end, or before an underscore."""
    places = [place for place, letter in enumerate(name) if letter == "_"] + [len(name)]
    return [(name[:place], name[place:]) for place in places]


def test_a_quiet_request_is_the_loud_one_under_another_opcode():
    loud, quiet = (documents.Increment(key=b"n", delta=1, quiet=each) for each in (False, True))
    assert (loud.encode()[1], quiet.encode()[1]) == (Opcode.INCREMENT, Opcode.INCREMENTQ)
    assert loud.encode()[2:] == quiet.encode()[2:]
    assert decode(quiet.encode()) == quiet != loud


def test_what_has_no_quiet_form_is_never_sent_in_one():
    with pytest.raises(LocalProtocolError, match="Touch has no quiet form"):
        documents.Touch(key=b"k", expiration=0, quiet=True).encode()


def test_reads_are_silent_where_there_is_nothing_and_writes_where_all_is_well():
    silent = {each: each.layout.silent for each in (documents.Get, documents.GetAndTouch, meta.GetMeta)}
    assert set(silent.values()) == {Status.KEY_ENOENT}
    assert documents.Set.layout.silent == bootstrap.Quit.layout.silent == Status.SUCCESS


def test_an_answer_goes_under_the_opcode_and_opaque_of_its_request():
    asked = documents.Set(key=b"k", opaque=7, quiet=True).frame()
    short, long = documents.Stored(cas=5), documents.Stored(cas=5, vb_uuid=1, seqno=2)
    for answer in (short, long):
        told = decode(answer.answering(asked))
        assert told == dataclasses.replace(answer, opcode=Opcode.SETQ, opaque=7)


def test_an_answer_without_a_request_never_leaves():
    with pytest.raises(LocalProtocolError, match="opcode is -1"):
        documents.Stored(cas=1).encode()


def test_which_requests_may_carry_a_cas():
    found = {message.__name__ for module in (documents, meta) for message in messages(module) if message.layout.cas}
    writes = {"Set", "Replace", "Delete", "Append", "Prepend", "Unlock"}
    assert found == writes | {"SetWithMeta", "AddWithMeta", "DelWithMeta", "ReturnMeta"}


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
    told = meta.ObserveResponse(opcode=Opcode.OBSERVE, states=[(7, b"k", 0x80, 5)])
    assert told.frame().value == b"\x00\x07\x00\x01k\x80" + (5).to_bytes(8) and decode(told.encode()) == told


def test_a_state_that_does_not_exist_never_leaves():
    with pytest.raises(LocalProtocolError, match="state is 5, expected 1 or 2 or 3 or 4"):
        admin.SetVbucket(state=5).encode()


def test_the_state_of_one_vbucket_is_four_bytes():
    assert admin.GetVbucketResponse.decode(Frame(0x81, 0x3E, value=bytes([0, 0, 0, 2]))).state == 2


@pytest.mark.parametrize("value", [b"", bytes(4), bytes([0, 0, 0, 5]), bytes([1])])
def test_a_state_of_another_shape_is_refused(value):
    with pytest.raises(BadMessage, match="GetVbucketResponse"):
        admin.GetVbucketResponse.decode(Frame(0x81, 0x3E, value=value))


def test_seqnos_are_entries_of_ten_bytes():
    value = bytes.fromhex("0003 00000000000000090400 00000000000000ff")
    assert admin.GetAllVbSeqnosResponse.decode(Frame(0x81, 0x48, value=value)).seqnos == [(3, 9), (1024, 255)]
    with pytest.raises(BadMessage, match="8 bytes expected at offset 12 of 19"):
        admin.GetAllVbSeqnosResponse.decode(Frame(0x81, 0x48, value=value[:-1]))


def test_a_failover_log_has_entries_of_sixteen_bytes_and_at_least_one():
    value = bytes.fromhex("00000000000000aa 0000000000000007 00000000000000bb 0000000000000000")
    told = admin.GetFailoverLogResponse.decode(Frame(0x81, 0x96, value=value))
    assert told.failover_log == [(0xAA, 7), (0xBB, 0)]
    for wrong in (b"", value[:-1]):
        with pytest.raises(BadMessage, match="GetFailoverLogResponse"):
            admin.GetFailoverLogResponse.decode(Frame(0x81, 0x96, value=wrong))
