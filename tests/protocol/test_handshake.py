"""The handshake as a conversation: `>>` is what we say, `<<` what the server answers."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from headwater.errors import AuthError, InvalidArguments, KeyNotFound, NoAccess, OptionError, RemoteProtocolError
from headwater.protocol.end import PeerGone
from headwater.protocol.handshake import (
    MECHANISMS_KNOWN,
    Agreed,
    Conversation,
    Greeting,
    Handshake,
    Login,
    Opening,
    choose,
    expect,
    greet,
    open_producer,
)
from headwater.protocol.scram import Binding
from headwater.wire.bootstrap import Hello, Noop
from headwater.wire.features import Feature
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode as Op
from headwater.wire.status import Status

ALL = b"".join(int(feature).to_bytes(2) for feature in (Feature.XERROR, Feature.SELECT_BUCKET, Feature.JSON))
NONCE = "fyko+d2lbbFgONRv9qkxdawL"  # the exchange of RFC 5802, 5
CHALLENGE = b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096"
SIGNED = b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ="


def converse(conversation: Conversation, lines: Sequence[tuple]):
    """Play (opcode, what we say, status, what comes back) and return the result; what we say may be None for "any"."""
    asked = next(conversation)
    for opcode, said, status, answer in lines:
        assert asked.opcode == opcode, Op(asked.opcode)
        assert said is None or (asked.key, asked.value) == said
        try:
            asked = conversation.send(response(asked, status, value=answer))
        except StopIteration as stop:
            return stop.value
    raise AssertionError(f"{Op(asked.opcode).name} was not expected")


def test_without_a_user_the_bucket_is_selected_and_the_map_fetched():
    lines = [
        (Op.HELLO, (b"us", ALL), 0, ALL),
        (Op.SELECT_BUCKET, (b"default", b""), 0, b""),
        (Op.GET_CLUSTER_CONFIG, (b"", b""), 0, b'{"rev":1}'),
    ]
    login = Login("us", "default", features=(Feature.XERROR, Feature.SELECT_BUCKET, Feature.JSON))
    assert converse(greet(login), lines) == Greeting(frozenset({7, 8, 11}), b'{"rev":1}')


def test_the_strongest_mechanism_offered_is_used_and_the_server_must_sign():
    lines = [
        (Op.HELLO, None, 0, b""),
        (Op.SASL_LIST_MECHS, (b"", b""), 0, b"PLAIN SCRAM-SHA1 CRAM-MD5"),
        (Op.SASL_AUTH, (b"SCRAM-SHA1", b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL"), Status.AUTH_CONTINUE, CHALLENGE),
        (Op.SASL_STEP, None, 0, SIGNED),
        (Op.SELECT_BUCKET, (b"default", b""), Status.UNKNOWN_COMMAND, b""),
        (Op.GET_CLUSTER_CONFIG, None, Status.UNKNOWN_COMMAND, b""),
    ]
    login = Login("us", "default", "user", "pencil", NONCE)
    assert converse(greet(login), lines) == Greeting(frozenset(), None)


def test_a_server_that_says_yes_without_signing_is_not_trusted():
    lines = [(Op.HELLO, None, 0, b""), (Op.SASL_LIST_MECHS, None, 0, b"SCRAM-SHA1"), (Op.SASL_AUTH, None, 0, b"")]
    with pytest.raises(RemoteProtocolError, match="could not prove"):
        converse(greet(Login("us", "", "user", "pencil", NONCE)), lines)


def test_plain_where_it_is_asked_for_and_nothing_else_is_offered():
    lines = [
        (Op.HELLO, None, Status.UNKNOWN_COMMAND, b""),
        (Op.SASL_LIST_MECHS, None, 0, b"PLAIN"),
        (Op.SASL_AUTH, (b"PLAIN", b"\x00user\x00pencil"), 0, b""),
        (Op.SELECT_BUCKET, (b"default", b""), 0, b""),
        (Op.GET_CLUSTER_CONFIG, None, Status.KEY_ENOENT, b""),
    ]
    assert converse(greet(Login("us", "default", "user", "pencil", mechanisms=MECHANISMS_KNOWN)), lines).config is None


def test_a_user_with_the_buckets_name_has_it_by_logging_in_where_selecting_is_unknown():
    lines = [
        (Op.HELLO, None, 0, b""),
        (Op.SASL_LIST_MECHS, None, 0, b"PLAIN"),
        (Op.SASL_AUTH, (b"PLAIN", b"\x00beer\x00pencil"), 0, b""),
        (Op.GET_CLUSTER_CONFIG, None, 0, b"{}"),
    ]
    assert converse(greet(Login("us", "beer", "beer", "pencil", mechanisms=MECHANISMS_KNOWN)), lines).config == b"{}"


def test_who_wants_no_map_does_not_ask_for_it():
    assert converse(greet(Login("us", "beer", wants_map=False)), [(Op.HELLO, None, 0, b"")]).config is None


def test_who_asks_for_no_feature_says_no_hello_for_plain_memcached_never_answers_one():
    lines = [(Op.GET_CLUSTER_CONFIG, None, Status.UNKNOWN_COMMAND, b"Unknown command")]
    assert converse(greet(Login("us", features=())), lines) == Greeting(frozenset(), None)


def test_a_password_never_goes_out_by_a_mechanism_that_was_left_out():
    lines = [(Op.HELLO, None, 0, b""), (Op.SASL_LIST_MECHS, None, 0, b"PLAIN")]
    with pytest.raises(OptionError, match="PLAIN"):
        converse(greet(Login("us", "", "user", "pencil", NONCE, ("SCRAM-SHA512",))), lines)


@pytest.mark.parametrize("step", [Op.SASL_AUTH, Op.SASL_STEP])
def test_a_wrong_password_is_an_auth_error(step: int):
    lines = [(Op.HELLO, None, 0, b""), (Op.SASL_LIST_MECHS, None, 0, b"SCRAM-SHA1")]
    if step == Op.SASL_STEP:
        lines.append((Op.SASL_AUTH, None, Status.AUTH_CONTINUE, CHALLENGE))
    with pytest.raises(AuthError, match='log in as "user" by SCRAM-SHA1'):
        converse(greet(Login("us", "", "user", "wrong", NONCE)), [*lines, (step, None, Status.AUTH_ERROR, b"")])


@pytest.mark.parametrize(
    ("data", "whom"), [(b"db1:1 10.0.0.1:1", '"db1:1 10.0.0.1:1"'), (b"\x80\0", "the certificate that was shown")]
)
def test_a_proof_for_one_connection_that_is_refused_says_for_whom_it_was(data: bytes, whom: str) -> None:
    lines = [
        (Op.HELLO, None, 0, b""),
        (Op.SASL_LIST_MECHS, None, 0, b"SCRAM-SHA1"),
        (Op.SASL_AUTH, None, Status.AUTH_ERROR, b""),
    ]
    login = Login("us", "", "@cluster", "secret", NONCE, binding=Binding("headwater-address", data))
    with pytest.raises(AuthError, match=f"for {whom} .if the secret is right"):
        converse(greet(login), lines)


@pytest.mark.parametrize(("status", "error"), [(Status.KEY_ENOENT, KeyNotFound), (Status.EACCESS, NoAccess)])
def test_a_bucket_that_is_not_ours_is_named(status: int, error: type[Exception]):
    lines = [(Op.HELLO, None, 0, ALL), (Op.SELECT_BUCKET, (b"beer", b""), status, b"")]
    with pytest.raises(error, match='select bucket "beer"'):
        converse(greet(Login("us", "beer")), lines)


def test_half_a_feature_is_a_broken_answer():
    with pytest.raises(RemoteProtocolError, match="2 bytes expected at offset 2 of 3"):
        converse(greet(Login("us")), [(Op.HELLO, None, 0, b"\x00\x07\x00")])


def test_the_connection_is_opened_and_controls_go_one_at_a_time():
    opening = Opening("me", 0x21, required=(("a", "1"),), optional=(("b", "2"), ("c", "3")))
    lines = [
        (Op.DCP_OPEN, (b"me", b""), 0, b""),
        (Op.DCP_CONTROL, (b"a", b"1"), 0, b""),
        (Op.DCP_CONTROL, (b"b", b"2"), Status.EINVAL, b"Invalid arguments"),
        (Op.DCP_CONTROL, (b"c", b"3"), 0, b""),
    ]
    assert converse(open_producer(opening), lines) == {"a", "c"}


def test_the_open_of_the_specification():
    asked = next(open_producer(Opening("cap-producer-1", 1)))
    expected = "8050000e080000000000001600000000000000000000000000000000000000016361702d70726f64756365722d31"
    assert asked.encode().hex() == expected


def test_flags_that_an_old_server_does_not_know_are_left_out():
    opening = open_producer(Opening("me", 0x01, 0x20))
    asked = next(opening)
    assert asked.extras == bytes(7) + b"\x21"
    asked = opening.send(response(asked, Status.EINVAL))
    assert asked.extras == bytes(7) + b"\x01"


def test_of_flags_that_an_old_server_may_not_know_the_youngest_is_left_out_first():
    opening = open_producer(Opening("me", 0x05, 0x120))
    asked = next(opening)
    assert asked.extras == bytes(6) + b"\x01\x25"
    asked = opening.send(response(asked, Status.EINVAL))
    assert asked.extras == bytes(7) + b"\x25"
    asked = opening.send(response(asked, Status.EINVAL))
    assert asked.extras == bytes(7) + b"\x05"


def test_a_required_control_that_is_refused_ends_the_handshake():
    lines = [(Op.DCP_OPEN, None, 0, b""), (Op.DCP_CONTROL, None, Status.EINVAL, b"")]
    with pytest.raises(InvalidArguments, match="a=1"):
        converse(open_producer(Opening("me", 1, required=(("a", "1"),))), lines)


def test_the_answer_to_another_question_is_refused():
    asked = Hello(features=[]).frame()
    for answer in (response(Noop().frame()), Frame(0x81, Op.HELLO, opaque=9), asked):
        with pytest.raises(RemoteProtocolError):
            expect(asked, answer)


def test_the_first_of_ours_that_the_server_knows():
    assert choose(("A", "B"), ["C", "B", "A"]) == "A"


def hello_answered(opaque=1, status=Status.UNKNOWN_COMMAND):
    return replace(response(Hello(features=[]).frame(), status), opaque=opaque).encode()


@pytest.mark.parametrize("cut", range(0, 24, 5))
def test_a_handshake_by_bytes_keeps_what_comes_behind_its_last_answer(cut):
    end = Handshake(greet(Login("me", wants_map=False)))
    assert Frame.decode(end.data_to_send()).opaque == 1
    data = hello_answered() + b"more"
    events = end.receive_data(data[:cut], 0.0) + end.receive_data(data[cut:], 0.0)
    assert events == [Agreed(Greeting(frozenset(), None))]
    assert (end.trailing_data, end.data_to_send()) == (b"more", b"")


def test_a_handshake_numbers_its_requests_and_answers_noops_meanwhile():
    end = Handshake(greet(Login("me")))
    end.data_to_send()
    noop = Frame(0x80, Op.DCP_NOOP, opaque=77)
    assert end.receive_data(noop.encode() + hello_answered(), 0.0) == []
    sent = FrameBuffer().receive_data(end.data_to_send())
    assert [(frame.opcode, frame.opaque) for frame in sent] == [(Op.DCP_NOOP, 77), (Op.GET_CLUSTER_CONFIG, 2)]


def test_a_handshake_raises_what_the_server_refused_and_what_answers_nothing():
    with pytest.raises(RemoteProtocolError, match="opaque 9"):
        Handshake(greet(Login("me"))).receive_data(hello_answered(opaque=9), 0.0)
    with pytest.raises(NoAccess, match="HELLO"):
        Handshake(greet(Login("me"))).receive_data(hello_answered(status=Status.EACCESS), 0.0)


def test_a_handshake_that_takes_too_long_is_given_up_at_its_deadline():
    end = Handshake(greet(Login("me")), now=5.0, seconds_max=10.0)
    assert (end.deadline, end.tick(14.9)) == (15.0, [])
    assert end.tick(15.0) == [PeerGone(10.0, "HELLO")]
