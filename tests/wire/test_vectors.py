"""Every vector of tests/data/vectors.json, by name: read and written back, or refused as it should be."""

import json
from pathlib import Path

import pytest

from headwater.errors import BadFrame, RemoteProtocolError
from headwater.wire import leb128, xattr
from headwater.wire.dialect import Dialect, decode
from headwater.wire.framing import FrameBuffer, decode_framing, encode_framing
from headwater.wire.header import Frame, lengths

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "vectors.json").read_text())
FRAMES = [each for each in VECTORS if each["kind"] == "frame"]

# Where an extras field has the name of a header field, the class tells them apart.
RENAMED = {
    ("set_with_meta_resolved", "cas"): "stored_cas",
    ("del_with_meta_resolved", "cas"): "stored_cas",
    ("get_meta_rsp", "datatype"): "stored_datatype",
}


def named(vectors):
    return pytest.mark.parametrize("vector", [pytest.param(vector, id=vector["name"]) for vector in vectors])


def message_of(vector):
    return decode(bytes.fromhex(vector["hex"]), Dialect[vector["dialect"].upper()])


def plain(field, value):
    """Turn a list of objects of the vectors into the tuples of the messages."""
    if field == "items":
        return [
            tuple(v.encode() if isinstance(v, str) else v for k, v in item.items() if not k.endswith("_len"))
            for item in value
        ]
    return (
        [tuple(row.values()) if isinstance(row, dict) else row for row in value] if isinstance(value, list) else value
    )


@named(frame for frame in FRAMES if not frame["errata"])
def test_a_vector_decodes_to_its_fields_and_encodes_back(vector):
    data, told = bytes.fromhex(vector["hex"]), vector["decoded"]
    message = message_of(vector)
    assert message.encode() == data

    for field, value in (told.get("extras", {}) | told.get("value_fields", {})).items():
        if field == "hex":
            assert message.frame().extras.hex() == value
        else:
            assert getattr(message, RENAMED.get((vector["name"], field), field)) == plain(field, value), field
    if "key" in told or "key_hex" in told:
        assert message.key == (bytes.fromhex(told["key_hex"]) if "key_hex" in told else told["key"].encode())
    if "value" in told:
        assert message.value == told["value"].encode()
    elif "value_hex" in told and vector["name"] != "dcp_buffer_ack":
        assert message.frame().value.hex() == told["value_hex"]
    if "engine_specific_hex" in told:
        assert message.engine_specific.hex() == told["engine_specific_hex"]
    if "collection_id" in told and "logical_key" in told:
        assert leb128.split_key(message.key) == (told["collection_id"], told["logical_key"].encode())
    if "framing" in told:
        assert [(info.id, info.data.hex()) for info in decode_framing(message.framing)] == [
            (info["id"], info["data_hex"]) for info in told["framing"]
        ]


@named(each for each in FRAMES if not each["errata"])
def test_a_vectors_header_reads_as_told(vector):
    data, told = bytes.fromhex(vector["hex"]), vector["decoded"]["header"]
    frame, found = Frame.decode(data), lengths(data)
    told = dict(told)
    assert (found.key, found.extras, found.body) == (told.pop("key_len"), told.pop("extras_len"), told.pop("body_len"))
    assert found.framing == told.pop("framing_len", 0)
    assert {name: getattr(frame, name) for name in told} == told


@named(frame for frame in FRAMES if frame["errata"] and "bytes_present" in frame["decoded"])
def test_printed_bytes_whose_lengths_lie_are_refused(vector):
    data = bytes.fromhex(vector["hex"])
    assert len(data) == vector["decoded"]["bytes_present"] != vector["decoded"]["bytes_declared"]
    with pytest.raises(BadFrame):
        decode(data)


@named(frame for frame in FRAMES if frame["errata"])
def test_printed_bytes_in_a_stream_are_never_guessed_at(vector):
    buffer, data = FrameBuffer(), bytes.fromhex(vector["hex"])
    try:
        for frame in buffer.receive_data(data):
            assert data.startswith(frame.encode())
    except RemoteProtocolError as refused:
        assert isinstance(refused, BadFrame)


@named(frame for frame in FRAMES if frame["errata"] and "bytes_present" not in frame["decoded"])
def test_printed_bytes_that_hold_together_mean_what_the_bytes_say(vector):
    assert message_of(vector).encode().hex() == vector["hex"]


@named(each for each in VECTORS if each.get("resolves"))
def test_a_corrected_vector_stands_beside_the_printed_one(vector):
    printed = next(each for each in VECTORS if each["name"] == vector["resolves"])
    assert printed["errata"] and not vector["errata"]


@named(each for each in VECTORS if "leb128" in each["decoded"])
def test_a_collection_id_vector(vector):
    data, number = bytes.fromhex(vector["hex"]), vector["decoded"]["leb128"]
    assert leb128.encode(number) == data
    assert leb128.decode(data) == (number, len(data))


@named(each for each in VECTORS if "leb128_non_canonical_for" in each["decoded"])
def test_a_long_spelling_of_a_collection_id_is_refused(vector):
    with pytest.raises(RemoteProtocolError, match="non canonical"):
        leb128.decode(bytes.fromhex(vector["hex"]))


@named(each for each in VECTORS if "pairs" in each["decoded"])
def test_an_xattr_vector(vector):
    data, told = bytes.fromhex(vector["hex"]), vector["decoded"]
    pairs, body = xattr.split(data)
    assert {key: text.decode() for key, text in pairs.items()} == told["pairs"]
    assert body.decode() == told["body"]
    assert xattr.join(pairs, body) == data


@named(each for each in VECTORS if each["kind"] == "fragment" and "framing" in each["decoded"])
def test_a_framing_vector(vector):
    data = bytes.fromhex(vector["hex"])
    infos = decode_framing(data)
    assert [(info.id, len(info.data), info.data.hex()) for info in infos] == [
        (told["id"], told["len"], told["data_hex"]) for told in vector["decoded"]["framing"]
    ]
    assert encode_framing(infos) == data


def test_every_vector_is_run():
    tested = [vector for vector in VECTORS if vector["kind"] == "frame"]
    fragments = [
        vector
        for vector in VECTORS
        if {"leb128", "leb128_non_canonical_for", "pairs", "framing"} & {*vector["decoded"]}
    ]
    assert {each["name"] for each in (*tested, *fragments)} == {vector["name"] for vector in VECTORS}
