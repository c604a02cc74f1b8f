import pickle
from dataclasses import replace
from functools import partial

import pytest
from pyspark.sql.types import StructType

from headwater.client import WriteWithMeta, connect
from headwater.errors import DataLoss, HistoryChanged, NoAccess, NotSupported, RollbackRequired
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.position import ClaimedPosition, Position
from headwater.spark.planner import Range
from headwater.spark.reader import claim, read
from headwater.spark.schema import COLUMNS, types
from headwater.spark.settings import parse
from headwater.spark.source import DcpBatchReader
from headwater.testing.node import node
from headwater.wire.opcodes import Opcode
from headwater.wire.xattr import join
from tests.node.kv.test_rights_in_places import PASSWORD, give
from tests.node.wire import Client
from tests.pipelines.support import VBUCKETS, becomes, put_into
from tests.spark.fakes import FakeClient, FakeVbucket

SETTINGS = parse({"url": "couchbase://h/b", "retrySeconds": "0"}, streaming=True)
OLD, NEW = ((0xA, 0),), ((0xB, 7), (0xA, 0))


def rows(client: FakeClient, *parts: Range) -> list[tuple[int, str, int]]:
    """Return the rows of a task, as (vbucket, event, seqno)."""
    batches = list(read(SETTINGS, tuple(COLUMNS), parts, lambda _: client))
    return [(row["vbucket"], row["event"], row["seqno"]) for batch in batches for row in batch.to_pylist()]


def mutations(vb: int, seqnos: range) -> list[tuple[int, str, int]]:
    return [(vb, "mutation", seqno) for seqno in seqnos]


def test_a_task_reads_its_ranges_and_no_further() -> None:
    client = FakeClient({0: FakeVbucket(OLD, range(1, 20)), 1: FakeVbucket(OLD, range(1, 20))})
    read_rows = rows(client, Range(0, 0xA, 0, 5, 19), Range(1, 0xA, 10, 12, 19))
    assert read_rows == mutations(0, range(1, 6)) + mutations(1, range(11, 13))
    assert client.closed == 1


@pytest.mark.parametrize("records", ["true", "false"])
def test_what_a_transaction_has_staged_comes_with_its_record(records: str) -> None:
    """New documents are staged as attributes of tombstones; a record without them would be of a committed nothing."""
    staged = join({"txn": b'{"op":{"type":"insert"}}'})
    with node(vbuckets=1) as running:
        with connect(running.url, xattrs=True) as client:
            write = WriteWithMeta("k", staged, 0, 0, cas=5 << 32, rev_seqno=9, datatype=4, deletes=True)
            assert client.write_many([write]) == {}
            part = Range(0, client.failover_log(0)[0][0], 0, 1, 1)
        settings = parse({"url": running.url, "xattrs": "true", "transactionRecords": records}, streaming=True)
        batches = list(read(settings, ("key", "value", "datatype"), [part]))
    found = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["key"], row["value"]) for row in found] == [(b"k", staged if records == "true" else None)]


def test_a_task_that_may_go_on_takes_the_state_that_a_node_can_show_and_tells_where_it_is() -> None:
    """Asked for the middle of a snapshot, nodes send all of it: its rows together are one state, cut they are none."""
    client = FakeClient({0: FakeVbucket(OLD, range(1, 20)), 1: FakeVbucket(((0xB, 15), (0xA, 0)), range(1, 20))})
    reached: dict[int, tuple[int, int]] = {}
    unread: set[int] = set()
    parts = [Range(0, 0xA, 0, 19, 19), Range(1, 0xA, 10, 12, 12)]
    batches = list(read(SETTINGS, ("vbucket", "seqno", "vb_uuid"), parts, lambda _: client, unread, reached=reached))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["seqno"] for row in rows if row["vbucket"] == 1] == list(range(11, 20))
    assert {row["vb_uuid"][-1] for row in rows if row["seqno"] > 15 and row["vbucket"] == 1} == {"b"}
    assert (reached, unread) == ({1: (0xB, 19)}, set())


def test_a_stream_that_ends_behind_the_end_and_with_no_whole_state_is_asked_for_again() -> None:
    """A connection broke there; asked again for nothing more, a node has nothing more to say."""
    client = FakeClient({0: FakeVbucket(OLD, range(1, 20)), 1: FakeVbucket(NEW, range(1, 20))})
    client.vbuckets[0].breaks_at = 12
    reached: dict[int, tuple[int, int]] = {}
    unread: set[int] = set()
    parts = [Range(0, 0xA, 0, 9, 9), Range(1, 0xA, 0, 9, 9)]
    batches = list(read(SETTINGS, tuple(COLUMNS), parts, lambda _: client, unread, reached=reached))
    found = [(row["vbucket"], row["seqno"]) for batch in batches for row in batch.to_pylist()]
    assert found == [(0, n) for n in range(1, 13)] + [(1, n) for n in range(1, 8)] + [(0, n) for n in range(13, 20)]
    assert (reached, unread) == ({0: (0xA, 19)}, {1}), "of another history nothing is taken"


def test_rollback_rows_come_first() -> None:
    client = FakeClient({0: FakeVbucket(NEW, range(1, 10))})
    assert rows(client, Range(0, 0xB, 4, 9, 9, rollback=True))[:2] == [(0, "rollback", 4), (0, "mutation", 5)]


def test_a_rollback_to_nothing_needs_no_node() -> None:
    assert rows(FakeClient({}), Range(0, 0xB, 0, 0, 0, rollback=True)) == [(0, "rollback", 0)]


def test_a_range_of_a_lost_branch_yields_nothing_and_the_others_go_on() -> None:
    client = FakeClient({0: FakeVbucket(NEW, range(1, 10)), 1: FakeVbucket(OLD, range(1, 10))})
    assert rows(client, Range(0, 0xA, 5, 9, 9), Range(1, 0xA, 5, 9, 9)) == mutations(1, range(6, 10))


def test_an_end_that_will_never_come_is_not_waited_for() -> None:
    """From the beginning every history is accepted: that this is another shows in its log only."""
    client = FakeClient({0: FakeVbucket(((0xC, 2), (0xA, 0)), range(1, 4))})
    assert rows(client, Range(0, 0xA, 0, 9, 9)) == mutations(0, range(1, 3))


def test_a_range_that_was_purged_meanwhile_is_left_to_the_planner() -> None:
    client = FakeClient({0: FakeVbucket(OLD, range(1, 10), purge=6)})
    assert rows(client, Range(0, 0xA, 5, 9, 9)) == []


def purged_amid() -> FakeClient:
    """Return a node to which the connection breaks behind seqno 4, and that purges all up to 6 meanwhile."""
    client = FakeClient({0: FakeVbucket(OLD, range(1, 10))})
    client.vbuckets[0].breaks_at, client.vbuckets[0].purges_amid = 4, 6
    return client


def test_a_first_read_amid_which_deletions_were_purged_begins_again_behind_a_rollback_row() -> None:
    """The planner would take a range from 0 to behind the purge seqno for whole."""
    assert rows(purged_amid(), Range(0, 0xA, 0, 9, 9)) == [
        *mutations(0, range(1, 5)),
        (0, "rollback", 0),
        *mutations(0, range(7, 10)),
    ]


@pytest.mark.parametrize("option", [{"failOnDataLoss": "true"}, {"rollbackPolicy": "fail"}])
def test_a_first_read_amid_which_deletions_were_purged_fails_where_no_rollback_row_may_come(
    option: dict[str, str],
) -> None:
    settings = parse({"url": "couchbase://h/b", "retrySeconds": "0", **option}, streaming=True)
    with pytest.raises(DataLoss, match=r"purged before they were read, in vbuckets 0 \(to seqno 6\)"):
        list(read(settings, tuple(COLUMNS), [Range(0, 0xA, 0, 9, 9)], lambda _: purged_amid()))


def test_a_reader_exactly_at_the_purge_seqno_of_an_old_server_goes_on() -> None:
    client = FakeClient({0: FakeVbucket(OLD, range(1, 10), purge=5)})
    client.old = True
    assert rows(client, Range(0, 0xA, 5, 9, 9)) == mutations(0, range(6, 10))


def test_a_refusal_by_a_node_that_has_just_lost_the_vbucket_is_asked_about_again() -> None:
    client = FakeClient({0: FakeVbucket(OLD, range(1, 10))})
    refusals = [RollbackRequired(0, 5, 0, "the node does not know our history")]

    def refuse(question: str) -> None:
        if question == "batches" and refusals:
            raise refusals.pop()

    client.before = refuse
    patient = parse({"url": "couchbase://h/b", "retrySeconds": "5"}, streaming=True)
    batches = list(read(patient, ("seqno",), [Range(0, 0xA, 5, 9, 9)], lambda _: client))
    assert [seqno for batch in batches for seqno in batch.column("seqno").to_pylist()] == [6, 7, 8, 9]


@pytest.mark.parametrize(
    ("client", "part"),
    [
        (purged_amid(), Range(0, 0xA, 0, 9, 9)),
        (FakeClient({0: FakeVbucket(OLD, range(1, 10), purge=6)}), Range(0, 0xA, 5, 9, 9)),
    ],
)
def test_a_bounded_read_amid_which_deletions_were_purged_says_so_and_not_that_a_failover_came(
    client: FakeClient, part: Range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.spark.reader.read", partial(read, connect=lambda _: client))
    reader = DcpBatchReader(SETTINGS, StructType().add("seqno", "long"), 1)
    with pytest.raises(HistoryChanged, match=r"^deletions were purged in vbucket 0 \(to seqno 6\) after") as caught:
        list(reader.rows_of(SETTINGS, [part]))
    assert (caught.value.vbuckets, caught.value.purged) == ([0], {0: 6})
    assert pickle.loads(pickle.dumps(caught.value)).purged == {0: 6}


def test_a_bounded_read_names_the_vbuckets_of_a_failover_and_those_of_a_purge() -> None:
    told = str(HistoryChanged([1, 3, 5], {3: 6}))
    assert told.startswith("a failover changed the history of vbucket 1, 5, deletions were purged in vbucket 3 (to seq")
    assert (
        str(HistoryChanged([7]))
        == "a failover changed the history of vbucket 7 after this read was planned: read again"
    )


def test_what_could_not_be_read_as_planned_is_told() -> None:
    """Of 1 the node has another branch up to the end, of 2 only a part; 3 was purged; 4 never had the planned one."""
    client = FakeClient(
        {
            0: FakeVbucket(OLD, range(1, 10)),
            1: FakeVbucket(NEW, range(1, 20)),
            2: FakeVbucket(((0xC, 2), (0xA, 0)), range(1, 4)),
            3: FakeVbucket(OLD, range(1, 10), purge=6),
            4: FakeVbucket(OLD, range(1, 20)),
        }
    )
    parts = [Range(vb, 0xA, 0, 9, 9) for vb in range(3)] + [Range(3, 0xA, 5, 9, 9), Range(4, 0xB, 0, 9, 9)]
    unread: set[int] = set()
    list(read(SETTINGS, ("seqno",), parts, lambda _: client, unread))
    assert unread == {1, 2, 3, 4}


def test_a_refusal_that_nothing_explains_is_an_error() -> None:
    client = FakeClient({0: FakeVbucket(OLD, range(1, 10))})

    def refuse(question: str) -> None:
        if question == "batches":
            raise RollbackRequired(0, 5, 0, "because")

    client.before = refuse
    with pytest.raises(RollbackRequired, match="because"):
        rows(client, Range(0, 0xA, 5, 9, 9))


def test_the_claim_is_checked_up_to_what_the_planner_had_seen() -> None:
    assert claim(Range(0, 0xA, 5, 9, 12)) == ClaimedPosition(0, 0xA, 5, 4, 12)
    assert claim(Range(0, 0xA, 0, 9, 12)) == Position.beginning(0)


def test_a_range_is_not_read_to_its_end_by_a_user_who_has_lost_the_right_to_its_collection() -> None:
    """A node refuses him as if the collection were dropped; passed over, its changes would never come again."""
    with node(vbuckets=VBUCKETS, environment={"HEADWATER_ADMINISTRATORS": ""}) as bucket:
        becomes(bucket, 1, a=8, b=9)
        put_into(bucket, 8, "k")
        give(bucket, {"job": "monitor[default],stream[default]", "root": "administer"})
        with bucket.client("job", PASSWORD) as client:
            logs, highs = client.failover_logs(range(VBUCKETS)), client.seqnos("all")
        parts = [Range(vb, logs[vb][0][0], 0, high, high) for vb, high in highs.items()]
        give(bucket, {"job": "stream[default:shop:b]", "root": "administer"})
        login = {"url": bucket.url, "user": "job", "password": PASSWORD, "retrySeconds": "5", "collections": "shop.a"}
        settings = replace(parse(login), coverage=Coverage(1, collections=(8,)))
        with pytest.raises(NoAccess, match="not shown to this user any more: the right to it was taken away"):
            list(read(settings, tuple(COLUMNS), parts))
        give(bucket, {"job": "monitor[default],stream[default]", "root": "administer"})
        assert sum(batch.num_rows for batch in read(settings, tuple(COLUMNS), parts)) == 1


def test_with_history_every_version_is_a_row_and_batches_may_end_between_two_of_a_document() -> None:
    with node(vbuckets=1) as running, running.client() as client:
        for value in "abc":
            for key in ("k", "l"):
                client.set(key, value)
        client.delete("k")
        uuid = client.failover_log(0)[0][0]
        options = {"url": running.url, "valueFormat": "string", "keyFormat": "string"}
        whole, first, second = Range(0, uuid, 0, 7, 7), Range(0, uuid, 0, 3, 7), Range(0, uuid, 3, 7, 7)

        def versions(history: str, *parts: Range) -> list[tuple[int, str, str, str | None]]:
            settings = parse({**options, "history": history}, streaming=True)
            found = [
                row for part in parts for batch in read(settings, tuple(COLUMNS), [part]) for row in batch.to_pylist()
            ]
            return [(row["seqno"], row["event"], row["key"], row["value"]) for row in found]

        expected = [
            (1, "mutation", "k", "a"),
            (2, "mutation", "l", "a"),
            (3, "mutation", "k", "b"),
            (4, "mutation", "l", "b"),
            (5, "mutation", "k", "c"),
            (6, "mutation", "l", "c"),
            (7, "deletion", "k", None),
        ]
        assert versions("true", whole) == versions("true", first, second) == expected
        assert [row[0] for row in versions("false", whole)] == [6, 7]


def test_with_before_each_row_has_the_version_that_it_replaced_in_whichever_batch_that_came() -> None:
    with node(vbuckets=1) as running, running.client() as client, Client(running.port) as operator:
        client.set("k", "gone")
        client.set("k", "a", flags=2**32 - 1)
        assert operator.ask(Opcode.COMPACT_DB, extras=bytes(24)).status == 0
        client.set("k", "b")
        client.delete("k")
        client.set("l", "c")
        uuid = client.failover_log(0)[0][0]
        options = {"url": running.url, "valueFormat": "string", "before": "true"}
        settings, names = parse(options, streaming=True), tuple(types(befores=True))
        parts = Range(0, uuid, 0, 3, 5), Range(0, uuid, 3, 5, 5)
        found = [row for part in parts for batch in read(settings, names, [part]) for row in batch.to_pylist()]
        bare = read(settings, ("seqno", "before"), parts[:1])
        assert [row["before"] and row["before"]["value"] for batch in bare for row in batch.to_pylist()] == [None, "a"]
    assert [(row["seqno"], row["operation"], row["before_known"]) for row in found] == [
        (2, None, False),
        (3, "update", True),
        (4, "delete", True),
        (5, "create", True),
    ]
    kept, update, delete, create = (row["before"] for row in found)
    assert kept is create is None and delete["value"] == "b"
    assert update | {"cas": 0} == {
        **{"seqno": 2, "rev_seqno": 2, "cas": 0, "flags": 2**32 - 1, "expiry": 0, "datatype": 0, "value": "a"}
    }
    assert update["cas"] == found[0]["cas"]


def test_what_is_older_than_a_nodes_history_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with node(vbuckets=1) as running, running.client() as client, Client(running.port) as operator:
        client.set_many([("k", "a"), ("k", "b"), ("k", "c")])
        assert operator.ask(Opcode.COMPACT_DB, extras=bytes(24)).status == 0
        client.set_many([("k", "d"), ("k", "e")])
        uuid = client.failover_log(0)[0][0]
        settings = parse({"url": running.url, "history": "true"}, streaming=True)
        batches = list(read(settings, ("seqno",), [Range(0, uuid, 0, 5, 5)]))
    assert [row["seqno"] for batch in batches for row in batch.to_pylist()] == [3, 4, 5]
    assert "of its changes up to seqno 3 only the last version of each document was read" in caplog.text


def test_a_node_that_keeps_no_versions_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient({0: FakeVbucket(OLD, range(1, 5))})
    asked: list[object] = []

    def refusing(*_: object, history: bool = False, **__: object) -> object:
        asked.append(history)
        raise NotSupported("127.0.0.1:11210 keeps no versions")

    monkeypatch.setattr(client, "batches", refusing)
    settings = parse({"url": "couchbase://h/b", "retrySeconds": "0", "history": "true"}, streaming=True)
    with pytest.raises(NotSupported, match=r"127.0.0.1:11210 keeps no versions"):
        list(read(settings, tuple(COLUMNS), [Range(0, 0xA, 0, 4, 4)], lambda _: client))
    assert asked == [True]
