"""kv.md on a live socket: what no other test asks a real node."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from struct import pack, unpack

import pytest

from headwater.testing import Node, node
from headwater.wire.features import Feature
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.conformance.seeds import SECONDS_MAX, Line
from tests.conformance.spec import quiet_forms, statements

REQUEST = 0x80
ACTIVE, REPLICA, DEAD, FREE = 0, 1, 2, 3
"""The vbuckets of the node, by what they are for; tests that write keep to ACTIVE."""


@pytest.fixture(scope="module")
def live() -> Iterator[Node]:
    with node(vbuckets=4) as made, Line(made.port) as line:
        line.done(Frame(REQUEST, Opcode.SET, b"copy", bytes(8), b"v", vbucket=REPLICA))
        for vbucket, state in ((REPLICA, State.REPLICA), (DEAD, State.DEAD)):
            line.done(Frame(REQUEST, Opcode.SET_VBUCKET, extras=bytes([state]), vbucket=vbucket))
        yield made


@pytest.fixture
def line(live: Node) -> Iterator[Line]:
    with Line(live.port) as made:
        made.done(hello(Feature.XERROR, Feature.JSON))
        yield made


def hello(*features: int) -> Frame:
    return Frame(REQUEST, Opcode.HELLO, value=b"".join(pack(">H", code) for code in features))


def ask(line: Line, opcode: int, key: bytes = b"", extras: bytes = b"", value: bytes = b"", **header: int) -> Frame:
    return line.ask(Frame(REQUEST, opcode, key, extras, value, **header))


def silent(line: Line, opcode: int, key: bytes = b"", extras: bytes = b"", value: bytes = b"") -> bool:
    """Whether the request is not answered: the next answer is that of a NOOP behind it."""
    line.send(Frame(REQUEST, opcode, key, extras, value), Frame(REQUEST, Opcode.NOOP))
    answer = line.frame()
    if answer.opcode != Opcode.NOOP:
        assert line.frame().opcode == Opcode.NOOP
    return answer.opcode == Opcode.NOOP


# --------------------------------------------------------------------------- common to all commands


@pytest.mark.parametrize(
    ("opcode", "key", "extras"),
    [
        (Opcode.GET, b"k", b""),
        (Opcode.DCP_OPEN, b"reader", bytes(7) + b"\1"),
        (Opcode.GET_VBUCKET, b"", b""),
        (Opcode.SET_VBUCKET, b"", b"\1"),
        (Opcode.STAT, b"", b""),
    ],
)
def test_without_a_bucket_documents_streams_and_vbuckets_are_refused(
    line: Line, opcode: int, key: bytes, extras: bytes
) -> None:
    line.done(Frame(REQUEST, Opcode.SELECT_BUCKET, b"@no bucket@"))
    assert ask(line, opcode, key, extras).status == Status.NO_BUCKET
    assert ask(line, Opcode.GET_CLUSTER_CONFIG).status == Status.NO_BUCKET


def test_get_replica_reads_a_replica_only(line: Line) -> None:
    assert ask(line, Opcode.GET_REPLICA, b"copy", vbucket=REPLICA).value == b"v"
    assert ask(line, Opcode.GET_REPLICA, b"copy", vbucket=ACTIVE).status == Status.NOT_MY_VBUCKET
    assert ask(line, Opcode.GET, b"copy", vbucket=REPLICA).status == Status.NOT_MY_VBUCKET


@pytest.mark.parametrize("vbucket", [ACTIVE, REPLICA, DEAD])
def test_what_asks_about_a_vbucket_is_answered_in_any_state(line: Line, vbucket: int) -> None:
    log = ask(line, Opcode.GET_FAILOVER_LOG, vbucket=vbucket)
    for answer in (
        log,
        ask(line, Opcode.GET_VBUCKET, vbucket=vbucket),
        ask(line, Opcode.SEQNO_PERSISTENCE, extras=bytes(8), vbucket=vbucket),
        ask(line, Opcode.GET_ALL_VB_SEQNOS, vbucket=vbucket),
    ):
        assert answer.status == Status.SUCCESS
    observed = ask(line, Opcode.OBSERVE_SEQNO, value=log.value[:8], vbucket=vbucket)
    assert observed.status == (Status.NOT_MY_VBUCKET if vbucket == DEAD else Status.SUCCESS)


def test_the_map_goes_with_every_refusal_also_for_those_who_asked_for_it_once(live: Node) -> None:
    config = b'{"rev":5,"name":"default","vBucketServerMap":{"serverList":["a:1"],"vBucketMap":[[0],[0]]}}'
    with node(vbuckets=2) as made, Line(made.port) as line:
        line.done(hello(Feature.XERROR, Feature.JSON, Feature.DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP))
        line.done(Frame(REQUEST, Opcode.SET_CLUSTER_CONFIG, b"default", pack(">qq", 1, 5), config))
        for _ in range(2):
            refused = ask(line, Opcode.GET, b"k", vbucket=9)
            assert (refused.status, refused.value) == (Status.NOT_MY_VBUCKET, config)


MUTATIONS: list[tuple[Opcode, bytes, bytes]] = [
    (Opcode.SETQ, bytes(8), b"1"),
    (Opcode.ADDQ, bytes(8), b"1"),
    (Opcode.REPLACEQ, bytes(8), b"1"),
    (Opcode.DELETEQ, b"", b""),
    (Opcode.INCREMENTQ, bytes(20), b""),
    (Opcode.DECREMENTQ, bytes(20), b""),
    (Opcode.APPENDQ, b"", b"1"),
    (Opcode.PREPENDQ, b"", b"1"),
    (Opcode.SETQ_WITH_META, pack(">IIQQ", 0, 0, 9, 9), b"1"),
    (Opcode.ADDQ_WITH_META, pack(">IIQQ", 0, 0, 9, 9), b"1"),
    (Opcode.DELQ_WITH_META, pack(">IIQQ", 0, 0, 9, 9), b""),
]
READS: list[tuple[Opcode, bytes]] = [
    (Opcode.GETQ, b""),
    (Opcode.GETKQ, b""),
    (Opcode.GATQ, bytes(4)),
    (Opcode.GETQ_META, b""),
]


@pytest.mark.parametrize(("opcode", "extras", "value"), MUTATIONS, ids=lambda value: getattr(value, "name", ""))
def test_a_quiet_mutation_tells_errors_only(line: Line, opcode: Opcode, extras: bytes, value: bytes) -> None:
    key = b"quiet-" + opcode.name.encode()
    if opcode not in (Opcode.ADDQ, Opcode.ADDQ_WITH_META):
        line.done(Frame(REQUEST, Opcode.SET, key, bytes(8), b"1"))
    assert silent(line, opcode, key, extras, value)
    assert not silent(line, opcode, key, extras + bytes(33), value)


@pytest.mark.parametrize(("opcode", "extras"), READS, ids=lambda value: getattr(value, "name", ""))
def test_a_quiet_read_tells_everything_but_a_miss(line: Line, opcode: Opcode, extras: bytes) -> None:
    line.done(Frame(REQUEST, Opcode.SET, b"hit", bytes(8), b"1"))
    assert silent(line, opcode, b"miss", extras)
    assert not silent(line, opcode, b"hit", extras)
    assert not silent(line, opcode, b"hit", extras + bytes(5))


def test_every_quiet_form_is_tried_here() -> None:
    tried = {*(opcode for opcode, *_ in MUTATIONS), *(opcode for opcode, _ in READS)}
    assert set(quiet_forms()) - tried == {Opcode.QUITQ, Opcode.FLUSHQ}


# --------------------------------------------------------------------------- 1: bootstrap


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that knows one user, of the name of its bucket."""
    users = tmp_path_factory.mktemp("users") / "users"
    users.write_text("default:secret\n")
    users.chmod(0o600)
    with node(vbuckets=2, users_file=users) as made:
        yield made


def plain(password: bytes) -> Frame:
    return Frame(REQUEST, Opcode.SASL_AUTH, b"PLAIN", value=b"\0default\0" + password)


def test_a_pipeline_behind_a_login_that_failed_is_refused_to_its_end(guarded: Node) -> None:
    with Line(guarded.port) as line:
        line.send(
            hello(Feature.XERROR),
            Frame(REQUEST, Opcode.GET_ERROR_MAP, value=b"\0\2"),
            Frame(REQUEST, Opcode.SASL_LIST_MECHS),
            plain(b"wrong"),
            Frame(REQUEST, Opcode.SELECT_BUCKET, b"default"),
            Frame(REQUEST, Opcode.GET_CLUSTER_CONFIG),
            Frame(REQUEST, Opcode.DCP_OPEN, b"reader", bytes(7) + b"\1"),
        )
        assert [line.frame().status for _ in range(7)] == [0, 0, 0, Status.AUTH_ERROR, *[Status.EACCESS] * 3]


def test_who_logs_in_again_begins_with_the_bucket_of_that_name(guarded: Node) -> None:
    with Line(guarded.port) as line:
        line.done(hello(Feature.XERROR))
        line.done(plain(b"secret"))
        line.done(Frame(REQUEST, Opcode.SELECT_BUCKET, b"@no bucket@"))
        assert ask(line, Opcode.GET, b"k").status == Status.NO_BUCKET
        line.done(plain(b"secret"))
        assert ask(line, Opcode.GET, b"k").status == Status.KEY_ENOENT


def test_mechanisms_are_told_strongest_first_and_take_no_body(line: Line) -> None:
    assert ask(line, Opcode.SASL_LIST_MECHS).value == b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN"
    assert ask(line, Opcode.SASL_LIST_MECHS, b"key").status == Status.EINVAL


def test_a_bucket_is_selected_by_its_key_alone(line: Line) -> None:
    assert ask(line, Opcode.SELECT_BUCKET, b"default", value=b"v").status == Status.EINVAL
    assert ask(line, Opcode.SELECT_BUCKET, b"default", b"\0").status == Status.EINVAL
    assert ask(line, Opcode.SELECT_BUCKET, b"nobody").status == Status.KEY_ENOENT


def test_a_map_is_asked_for_with_no_extras_or_with_16_bytes(line: Line) -> None:
    known = json.loads(ask(line, Opcode.GET_CLUSTER_CONFIG).value)
    assert ask(line, Opcode.GET_CLUSTER_CONFIG, extras=pack(">qq", 1, known["rev"])).value == b""
    assert ask(line, Opcode.GET_CLUSTER_CONFIG, extras=bytes(8)).status == Status.EINVAL


def test_the_map_that_a_node_makes_names_the_address_that_it_was_asked_at(line: Line) -> None:
    own = json.loads(ask(line, Opcode.GET_CLUSTER_CONFIG).value)
    assert own["nodesExt"][0]["thisNode"] is True and "hostname" not in own["nodesExt"][0]


def test_the_error_map_says_of_each_status_what_the_specification_does(line: Line) -> None:
    told = json.loads(ask(line, Opcode.GET_ERROR_MAP, value=b"\0\2").value)["errors"]
    rows = [
        statement.text.split(" / ") for statement in statements("kv") if statement.section == "1.5" and statement.is_row
    ]
    codes = {code.rstrip("*"): attributes for codes, attributes in rows for code in expanded(codes)}
    for code, attributes in codes.items():
        expected = set(attributes.partition(" (")[0].split(", ")) | ({"internal"} if code == "5" else set())
        assert set(told[code]["attrs"]) == expected, code
    assert set(told) - set(codes) == {"0"}


def expanded(codes: str) -> list[str]:
    """The codes of `35-38` or `1,2,5*`."""
    first, _, last = codes.partition("-")
    return [f"{code:x}" for code in range(int(first, 16), int(last, 16) + 1)] if last else codes.split(",")


@pytest.mark.parametrize(
    "opcode",
    [
        *(Opcode.SHUTDOWN, Opcode.AUDIT_PUT, Opcode.AUDIT_CONFIG_RELOAD),
        *(Opcode.RBAC_REFRESH, Opcode.GET_CMD_TIMER),
        Opcode.STOP_PERSISTENCE,
    ],
)
def test_what_this_node_does_not_do_is_not_supported(line: Line, opcode: Opcode) -> None:
    assert ask(line, opcode, b"name").status == Status.NOT_SUPPORTED


def test_the_answers_of_stat_stand_together(line: Line) -> None:
    line.send(Frame(REQUEST, Opcode.STAT, opaque=5), Frame(REQUEST, Opcode.NOOP, opaque=6))
    opaques = []
    while (answer := line.frame()).opaque == 5:
        opaques.append(answer.key)
    assert answer.opcode == Opcode.NOOP and opaques[-1] == b"" and len(opaques) > 10


# --------------------------------------------------------------------------- 2, 3: documents, vbuckets

SECTIONS: list[tuple[Opcode, int, bytes]] = [
    (Opcode.GET, 0, b""),
    (Opcode.GETK, 0, b""),
    (Opcode.SET, 8, b"1"),
    (Opcode.ADD, 8, b"1"),
    (Opcode.REPLACE, 8, b"1"),
    (Opcode.DELETE, 0, b""),
    (Opcode.INCREMENT, 20, b""),
    (Opcode.DECREMENT, 20, b""),
    (Opcode.APPEND, 0, b"1"),
    (Opcode.PREPEND, 0, b"1"),
    (Opcode.TOUCH, 4, b""),
    (Opcode.GAT, 4, b""),
    (Opcode.GET_LOCKED, 4, b""),
    (Opcode.UNLOCK_KEY, 0, b""),
]
ONLY_WITHOUT_CAS = {
    *(Opcode.GET, Opcode.GETK, Opcode.ADD, Opcode.INCREMENT, Opcode.DECREMENT),
    *(Opcode.TOUCH, Opcode.GAT, Opcode.GET_LOCKED),
}
WITHOUT_VALUE = {opcode for opcode, _, value in SECTIONS if not value}


@pytest.mark.parametrize(("opcode", "size", "value"), SECTIONS, ids=lambda value: getattr(value, "name", ""))
def test_a_document_command_takes_the_sections_of_its_row_and_no_others(
    line: Line, opcode: Opcode, size: int, value: bytes
) -> None:
    right = ask(line, opcode, b"sections", bytes(size), value)
    assert right.status != Status.EINVAL
    assert ask(line, opcode, b"", bytes(size), value).status == Status.EINVAL
    assert ask(line, opcode, b"sections", bytes(size + 1), value).status == Status.EINVAL
    if opcode in WITHOUT_VALUE:
        assert ask(line, opcode, b"sections", bytes(size), b"value").status == Status.EINVAL
    if opcode in ONLY_WITHOUT_CAS:
        assert ask(line, opcode, b"sections", bytes(size), value, cas=7).status == Status.EINVAL


def test_every_change_answers_the_new_cas(line: Line) -> None:
    line.done(hello(Feature.XERROR, Feature.MUTATION_SEQNO))
    seen = [
        ask(line, Opcode.SET, b"cas", bytes(8), b"1"),
        ask(line, Opcode.INCREMENT, b"cas", pack(">QQI", 1, 0, 0)),
        ask(line, Opcode.APPEND, b"cas", value=b"0"),
        ask(line, Opcode.DELETE, b"cas"),
    ]
    assert [answer.status for answer in seen] == [0] * 4
    assert [answer.cas for answer in seen] == sorted({answer.cas for answer in seen} - {0})
    uuids = {unpack(">QQ", answer.extras)[0] for answer in seen}
    seqnos = [unpack(">QQ", answer.extras)[1] for answer in seen]
    assert len(uuids) == 1 and seqnos == list(range(seqnos[0], seqnos[0] + 4))


def test_a_seqno_that_is_on_disk_is_told_at_once_and_one_to_come_when_it_has_come(live: Node, line: Line) -> None:
    line.done(hello(Feature.XERROR, Feature.MUTATION_SEQNO))
    _, seqno = unpack(">QQ", ask(line, Opcode.SET, b"on disk", bytes(8), b"v").extras)
    line.done(Frame(REQUEST, Opcode.SEQNO_PERSISTENCE, extras=pack(">Q", seqno)))
    line.done(Frame(REQUEST, Opcode.SEQNO_PERSISTENCE, value=pack(">Q", seqno)))
    statuses: list[int] = []
    with Line(live.port) as other:
        waiting = Frame(REQUEST, Opcode.SEQNO_PERSISTENCE, extras=pack(">Q", seqno + 1))
        asked = threading.Thread(target=lambda: statuses.append(other.ask(waiting).status))
        asked.start()
        line.done(Frame(REQUEST, Opcode.SET, b"on disk", bytes(8), b"w"))
        asked.join(SECONDS_MAX)
    assert statuses == [0]


def test_there_are_no_parameters_to_set(line: Line) -> None:
    assert ask(line, Opcode.SET_PARAM, b"max_size", pack(">I", 1), b"1").status == Status.EINVAL


def test_persistence_is_always_on(line: Line) -> None:
    assert ask(line, Opcode.START_PERSISTENCE).status == Status.SUCCESS
