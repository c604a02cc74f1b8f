"""Two connections under one name: what is said when they are made, what is asked, and who is told of what passes."""

import asyncio
from types import SimpleNamespace

import pytest

from headwater.client.routing import Address
from headwater.cluster.admin import Endpoint
from headwater.cluster.proxied import FEATURES, FLAGS, Limits, ProxiedConnection, open_proxied
from headwater.cluster.proxy import Side
from headwater.errors import ConnectionLost, InternalError, KeyExists, StatusError
from headwater.wire import dcp
from headwater.wire.features import Feature
from headwater.wire.flags import OpenFlag
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

from .fakes import FakeConnection

PENDING = dcp.SetVbucketState(vbucket=5, opaque=0x11, state=3).frame()


def asked(work, *statuses):
    """Run `work(connection)`; the questions it asked its ends, which answered with these statuses."""

    async def run():
        ends = FakeConnection()
        ends.statuses = list(statuses)
        connection = ProxiedConnection("a connection", Limits())
        connection.proxy = ends.proxy
        await work(connection)
        return ends.asked

    return asyncio.run(run())


# --------------------------------------------------------------------------- asking


def test_a_stream_is_asked_for_at_the_consumer_in_these_bytes():
    ((side, frame),) = asked(lambda connection: connection.add_stream(7, 1))
    assert side is Side.CONSUMER
    assert frame.encode().hex() == "80510000040000070000000400000000000000000000000000000001"


def test_a_stream_that_is_refused_is_told_with_its_vbucket():
    with pytest.raises(KeyExists, match="stream vbucket 7 to the target"):
        asked(lambda connection: connection.add_stream(7, 0), Status.KEY_EEXISTS)


def test_a_stream_is_closed_at_the_producer_first():
    questions = asked(lambda connection: connection.close_stream(7))
    assert [(side, frame.opcode, frame.vbucket) for side, frame in questions] == [
        (Side.PRODUCER, Opcode.DCP_CLOSE_STREAM, 7),
        (Side.CONSUMER, Opcode.DCP_CLOSE_STREAM, 7),
    ]


def test_closing_what_is_not_there_is_no_mistake_and_any_other_refusal_is():
    absent = Status.KEY_ENOENT, Status.DCP_STREAM_NOT_FOUND
    assert len(asked(lambda connection: connection.close_stream(7), *absent)) == 2
    with pytest.raises(InternalError, match="close the stream of vbucket 7 at the target"):
        asked(lambda connection: connection.close_stream(7), Status.SUCCESS, Status.EINTERNAL)


# --------------------------------------------------------------------------- who is told


class Listener:
    """Notes what it is told."""

    def __init__(self):
        self.heard = []

    def observe(self, side, frame):
        self.heard.append((side, frame))


@pytest.fixture
def connection():
    return ProxiedConnection("a connection", Limits())


def test_a_state_is_told_to_its_vbucket_and_the_answer_by_the_opaque(connection):
    five, six = Listener(), Listener()
    connection.listen(5, five)
    connection.listen(6, six)
    answer = Frame(0x81, Opcode.DCP_SET_VBUCKET_STATE, opaque=0x11)  # an answer names no vbucket
    connection.observe(Side.PRODUCER, PENDING)
    connection.observe(Side.CONSUMER, answer)
    assert five.heard == [(Side.PRODUCER, PENDING), (Side.CONSUMER, answer)] and six.heard == []


def test_an_answer_is_told_once_and_one_to_nothing_to_nobody(connection):
    zero = Listener()
    connection.listen(0, zero)
    connection.observe(Side.CONSUMER, Frame(0x81, Opcode.DCP_SET_VBUCKET_STATE, opaque=0x12))
    connection.observe(Side.PRODUCER, dcp.SetVbucketState(vbucket=0, opaque=0x12, state=3).frame())
    for _ in range(2):
        connection.observe(Side.CONSUMER, Frame(0x81, Opcode.DCP_SET_VBUCKET_STATE, opaque=0x12))
    assert [side for side, _ in zero.heard] == [Side.PRODUCER, Side.CONSUMER]


def test_who_has_left_is_told_nothing(connection):
    five = Listener()
    connection.listen(5, five)
    assert connection.stop_listening(5) and not connection.stop_listening(5)
    connection.observe(Side.PRODUCER, dcp.StreamEnd(vbucket=5, status=0).frame())
    assert five.heard == []


# --------------------------------------------------------------------------- opening


class End:
    """A node that grants some features, and answers DCP_OPEN with the next of `opens` (success when there is none).

    `connections` has what each connection was asked: (opcode, key, extras, value); `hung_up` counts those that ended.
    """

    def __init__(self, grants=FEATURES, opens=()):
        self.grants, self.opens = grants, list(opens)
        self.connections, self.hung_up = [], 0

    async def serve(self, reader, writer):
        heard = []
        self.connections.append(heard)
        try:
            while True:
                header = await reader.readexactly(24)
                frame = Frame.decode(header + await reader.readexactly(int.from_bytes(header[8:12])))
                heard.append((frame.opcode, frame.key, frame.extras, frame.value))
                writer.write(self._answer(frame).encode())
        except asyncio.IncompleteReadError:
            self.hung_up += 1
        finally:
            writer.close()

    def _answer(self, frame):
        if frame.opcode == Opcode.HELLO:
            wanted = [int.from_bytes(frame.value[at : at + 2]) for at in range(0, len(frame.value), 2)]
            return response(frame, value=b"".join(code.to_bytes(2) for code in wanted if code in self.grants))
        if frame.opcode == Opcode.DCP_OPEN and self.opens:
            return response(frame, self.opens.pop(0))
        return response(frame)

    def told(self, opcode):
        return [each for heard in self.connections for each in heard if each[0] == opcode]


def opened(source, target, purpose="copy", bucket="beer", **options):
    """A connection between two such nodes, closed again; with the addresses they had."""

    async def run():
        servers = [await asyncio.start_server(end.serve, "127.0.0.1", 0) for end in (source, target)]
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        ends = [Endpoint(Address("127.0.0.1", port), bucket) for port in ports]
        try:
            connection = await open_proxied(*ends, Limits(), purpose, **options)
            assert connection.is_open and connection.is_idle
            connection.close()
            assert not connection.is_open
            return connection.name, ports
        finally:
            for server in servers:
                server.close()
            while len(source.connections) + len(target.connections) > source.hung_up + target.hung_up:
                await asyncio.sleep(0)

    return asyncio.run(run())


def test_both_ends_are_opened_under_one_name_the_source_as_producer():
    source, target = End(), End()
    name, (one, other) = opened(source, target)
    assert name == f"replication:127.0.0.1:{one}->127.0.0.1:{other}:beer:copy"
    ((_, key, extras, _),) = source.told(Opcode.DCP_OPEN)
    assert (key, extras.hex()) == (name.encode(), f"00000000{FLAGS | 0x101:08x}")
    ((_, key, extras, _),) = target.told(Opcode.DCP_OPEN)
    assert (key, extras.hex()) == (name.encode(), f"00000000{FLAGS | 0x100:08x}")
    assert (len(source.connections), len(target.connections)) == (1, 1)


def test_a_name_is_cut_where_the_protocol_ends_it_and_keeps_its_purpose():
    name, _ = opened(End(), End(), bucket="b" * 300)
    assert len(name) == 200 and name.endswith("b:copy")


def test_what_the_source_does_not_grant_the_target_is_not_left_with():
    source, target = End(FEATURES[:2]), End()
    opened(source, target)
    wanted = [value for _, _, _, value in target.told(Opcode.HELLO)]
    assert wanted == [b"".join(code.to_bytes(2) for code in codes) for codes in (FEATURES, FEATURES[:2])]
    assert len(target.connections) == 2


def test_the_source_is_only_asked_for_what_the_target_grants():
    source = End()
    opened(source, End(FEATURES[:1]))
    assert [value for _, _, _, value in source.told(Opcode.HELLO)] == [FEATURES[0].to_bytes(2)]


def test_an_older_node_is_opened_without_the_flag_it_does_not_know():
    source = End(opens=[Status.EINVAL])
    opened(source, End())
    flags = [int.from_bytes(extras[4:]) for _, _, extras, _ in source.told(Opcode.DCP_OPEN)]
    assert flags == [FLAGS | 0x101, FLAGS | 0x01]


def flags_of(end):
    return [int.from_bytes(extras[4:]) for _, _, extras, _ in end.told(Opcode.DCP_OPEN)]


def test_what_an_older_target_does_not_know_the_source_is_not_asked_for():
    source, target = End(), End(opens=[Status.EINVAL] * 5)
    opened(source, target)
    without = FLAGS & ~OpenFlag.INCLUDE_DELETE_TIMES
    tried = [FLAGS | 0x100, FLAGS | 0x100, FLAGS, FLAGS, without, without]
    assert flags_of(target) == tried and flags_of(source) == [without | 0x01]


def test_a_target_that_knows_names_and_not_the_youngest_flag_is_told_its_name():
    source, target = End(), End(opens=[Status.EINVAL] * 2)
    opened(source, target)
    assert flags_of(target) == [FLAGS | 0x100, FLAGS | 0x100, FLAGS]
    assert [b"consumer_name" in value for _, _, _, value in target.told(Opcode.DCP_OPEN)] == [True, False, True]


def test_a_target_is_told_its_name_so_that_it_asks_for_prepares_and_one_that_refuses_is_not():
    source, target = End(), End(opens=[Status.EINVAL])
    _, (_, port) = opened(source, target)
    named = b'{"consumer_name": "127.0.0.1:%d"}' % port
    assert [value for _, _, _, value in target.told(Opcode.DCP_OPEN)] == [named, b""]
    assert [value for _, _, _, value in source.told(Opcode.DCP_OPEN)] == [b""]


def test_a_target_that_does_not_know_json_is_of_an_age_that_takes_no_delete_times():
    source, target = End(), End(tuple(feature for feature in FEATURES if feature != Feature.JSON))
    opened(source, target)
    for end in (source, target):
        assert [flags & OpenFlag.INCLUDE_DELETE_TIMES for flags in flags_of(end)] == [0]
        assert [value for _, _, _, value in end.told(Opcode.DCP_OPEN)] == [b""]


def test_delete_times_are_left_out_for_who_asks_for_that():
    source, target = End(), End()
    opened(source, target, delete_times=False)
    for end in (source, target):
        assert [flags & OpenFlag.INCLUDE_DELETE_TIMES for flags in flags_of(end)] == [0]


@pytest.mark.parametrize(
    ("refused", "had", "told"),
    [
        (None, True, False),
        (Opcode.DCP_MUTATION, True, False),
        (Opcode.DCP_DELETION, True, True),
        (Opcode.DCP_DELETION, False, False),
    ],
)
def test_a_refused_deletion_speaks_against_delete_times_only_where_there_were_any(connection, refused, had, told):
    connection.proxy, connection.has_delete_times = SimpleNamespace(refused=refused), had
    assert connection.refuses_delete_times is told


def test_a_node_that_refuses_is_told_and_both_connections_are_closed():
    source, target = End(opens=[Status.EACCESS]), End()
    with pytest.raises(StatusError, match='open the DCP connection "replication:'):
        opened(source, target)
    assert (source.hung_up, target.hung_up) == (1, 1)


def test_a_node_that_is_not_there_is_told():
    async def work():
        nobody = Endpoint(Address("127.0.0.1", 1))
        await open_proxied(nobody, nobody, Limits(), "copy")

    with pytest.raises(ConnectionLost, match="connection refused"):
        asyncio.run(work())
