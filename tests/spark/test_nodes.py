import pytest

from headwater.errors import (
    ConnectionLost,
    KeyNotFound,
    NotMyVbucket,
    OptionError,
    TemporaryFailure,
    UnknownCollection,
    UnknownScope,
)
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.position import Position
from headwater.spark.history import BranchHistory
from headwater.spark.nodes import WHOLE_LOOK_SECONDS, SourceNodes, patiently
from headwater.spark.offsets import Offset
from headwater.spark.settings import SourceSettings, parse
from headwater.wire.manifest import EMPTY, CollectionsManifest
from tests.spark.fakes import FakeClient, FakeVbucket

URL = "couchbase://h/b"
OLD, NEW = ((0xA, 0),), ((0xB, 7), (0xA, 0))


def settings(**options: str) -> SourceSettings:
    return parse({"url": URL, "retrySeconds": "0", **options}, streaming=True)


def test_an_observation_is_seqno_log_and_purge_seqno_of_each_vbucket() -> None:
    client = FakeClient({0: FakeVbucket(OLD, range(1, 10)), 5: FakeVbucket(NEW, range(1, 9), purge=4)})
    nodes = SourceNodes(settings(), lambda _: client)
    assert nodes.observe() == {0: BranchHistory(OLD, 9), 5: BranchHistory(NEW, 8, 4)}
    assert nodes.vbuckets == 6


def test_a_history_goes_to_its_purge_seqno_though_its_last_change_is_shown_no_more() -> None:
    client = FakeClient({0: FakeVbucket(OLD, range(1, 7), purge=8)})
    nodes = SourceNodes(settings(), lambda _: client)
    assert nodes.observe() == {0: BranchHistory(OLD, 8, 8)}
    assert nodes.observe(idle=True) == {0: BranchHistory(OLD, 8, 8)}


def test_only_the_wanted_vbuckets_are_looked_at() -> None:
    client = FakeClient({vb: FakeVbucket(OLD, range(1, 3)) for vb in range(4)})
    assert list(SourceNodes(settings(vbuckets="1-2"), lambda _: client).observe()) == [1, 2]


def test_logs_that_are_known_are_not_asked_for_again() -> None:
    client = FakeClient({0: FakeVbucket(OLD, range(1, 10))})
    nodes = SourceNodes(settings(), lambda _: client)
    nodes.observe()
    client.asked.clear()
    nodes.observe()
    assert client.asked == ["seqnos", "stats"]


def test_while_nothing_moves_one_question_is_enough_for_a_while() -> None:
    client, clock = FakeClient({vb: FakeVbucket(OLD, range(1, 10)) for vb in range(4)}), Clock()
    nodes = SourceNodes(settings(), lambda _: client, lambda: clock.now)
    before = nodes.observe()

    def asked(seconds: float) -> list[str]:
        clock.now += seconds
        client.asked.clear()
        nodes.observe(idle=True)
        return client.asked

    assert asked(1.0) == ["seqnos"] and nodes.observe(idle=True) == before
    client.vbuckets[2] = FakeVbucket(OLD, range(1, 11))
    assert asked(1.0) == ["seqnos", "stats"]
    assert asked(WHOLE_LOOK_SECONDS - 0.1) == ["seqnos"]
    assert asked(0.2) == ["seqnos", "stats"]
    client.asked.clear()
    nodes.observe()  # by one who has just read a batch
    assert client.asked == ["seqnos", "stats"]


def test_how_far_copies_are_is_asked_until_they_have_all_there_is() -> None:
    client, clock = FakeClient({vb: FakeVbucket(OLD, range(1, 10)) for vb in range(2)}), Clock()
    nodes = SourceNodes(settings(minPersisted="majority"), lambda _: client, lambda: clock.now)
    client.on_disk = {0: 9, 1: 4}
    assert [history.readable_seqno for history in nodes.observe().values()] == [9, 4]
    assert client.asked[-1] == "persisted by majority"
    client.on_disk[1] = 12
    assert [history.readable_seqno for history in nodes.observe(idle=True).values()] == [9, 9]
    client.asked.clear()
    nodes.observe(idle=True)
    assert client.asked == ["seqnos"]


def test_a_failover_between_the_questions_is_noticed() -> None:
    client = FakeClient({0: FakeVbucket(OLD, range(1, 10))})
    nodes = SourceNodes(settings(), lambda _: client)
    nodes.observe()

    def fail_over(question: str) -> None:
        if question == "stats":
            client.vbuckets[0] = FakeVbucket(NEW, range(1, 8))

    client.before = fail_over  # the seqno 9 that was just told belongs to a history that is gone
    assert nodes.observe() == {0: BranchHistory(NEW, 7)}


def test_a_vbucket_of_a_cluster_that_nobody_owns_is_missed_by_who_wants_the_whole() -> None:
    client = FakeClient({vb: FakeVbucket(OLD, range(1, 3)) for vb in range(4)}, nodes=2)
    del client.vbuckets[1]
    assert list(SourceNodes(settings(), lambda _: client).observe()) == [0, 2, 3]
    with pytest.raises(NotMyVbucket, match=r"1 of 4 vbuckets, the first is 1, have no active node in the cluster map"):
        SourceNodes(settings(), lambda _: client).observe(all_owners=True)
    assert list(SourceNodes(settings(vbuckets="2,3"), lambda _: client).observe(all_owners=True)) == [2, 3]


def test_who_wants_the_whole_of_a_node_of_its_own_that_has_some_vbuckets_is_told_how_many_are_missing() -> None:
    client = FakeClient({vb: FakeVbucket(OLD, range(1, 3)) for vb in range(4)})
    del client.vbuckets[1], client.vbuckets[3]
    assert list(SourceNodes(settings(), lambda _: client).observe()) == [0, 2]
    told = r"2 of 4 vbuckets, the first is 1, have no active node in the cluster map 1\.7, which names n0:11210 alone"
    with pytest.raises(NotMyVbucket, match=told):
        SourceNodes(settings(), lambda _: client).observe(all_owners=True)
    assert list(SourceNodes(settings(vbuckets="0,2"), lambda _: client).observe(all_owners=True)) == [0, 2]


def test_the_nodes_that_are_known_are_handed_on_to_the_tasks() -> None:
    client = FakeClient({0: FakeVbucket(OLD, range(1, 3))}, nodes=2)
    nodes = SourceNodes(settings(), lambda _: client)
    assert nodes.known() == ("couchbase://n0:11210,n1:11210,h:11210/b", (1, 7))
    told = nodes.known().for_task(settings())
    assert (told.url, told.map_version) == nodes.known()


def test_of_a_node_of_its_own_the_url_is_handed_on() -> None:
    client = FakeClient({0: FakeVbucket(OLD, range(1, 3))})
    assert SourceNodes(settings(), lambda _: client).known().url == URL


def test_a_task_is_told_of_tls_too() -> None:
    client = FakeClient({0: FakeVbucket(OLD, range(1, 3))}, nodes=2)
    nodes = SourceNodes(settings(url="couchbases://h/b?trust_store=ca.pem"), lambda _: client)
    nodes.observe()
    assert nodes.known().url == "couchbases://n0:11210,n1:11210,h:11207/b?trust_store=ca.pem"


class Clock:
    """Time passes by sleeping only."""

    def __init__(self) -> None:
        self.now, self.naps = 0.0, list[float]()

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds


def test_what_may_pass_is_tried_again_with_growing_pauses() -> None:
    clock, failures = Clock(), [ConnectionLost("h", "refused"), TemporaryFailure("warming up")]

    def attempt() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert patiently(attempt, 10, clock=lambda: clock.now, sleep=clock.sleep) == "done"
    assert clock.naps == [0.1, 0.2]


def test_patience_ends_with_the_last_error() -> None:
    clock = Clock()

    def attempt() -> None:
        raise ConnectionLost("h:1", f"refused at {clock.now:g}")

    with pytest.raises(ConnectionLost, match=r"refused at 3\.1"):
        patiently(attempt, 3.5, clock=lambda: clock.now, sleep=clock.sleep)
    assert clock.now <= 3.5


def test_what_does_not_pass_is_raised_at_once() -> None:
    clock = Clock()

    def attempt() -> None:
        raise KeyNotFound("bucket")

    with pytest.raises(KeyNotFound):
        patiently(attempt, 10, clock=lambda: clock.now, sleep=clock.sleep)
    assert clock.naps == []


SHOP = EMPTY.with_scope("shop", 8).with_collection("shop", "a", None, 8).with_collection("shop", "b", None, 9)


def choosing(manifest: CollectionsManifest = SHOP, **options: str) -> SourceNodes:
    client = FakeClient({0: FakeVbucket(OLD, range(1, 10))})
    client.manifest = lambda: manifest  # type: ignore[attr-defined]
    return SourceNodes(settings(**options), lambda _: client)


def held(coverage: Coverage | None, vb_uuid: int = 0xA) -> Offset:
    return Offset({0: Position(0, vb_uuid, 5, 5, 5)}, coverage=coverage)


def test_names_are_looked_up_once_and_ids_are_gone_on_with() -> None:
    assert choosing().covered(Offset()) is None
    assert choosing(collections="shop.b,shop.a").covered(Offset()) == Coverage(SHOP.uid, collections=(8, 9))
    assert choosing(collections="all").covered(Offset()) == Coverage(SHOP.uid)
    assert choosing(scope="shop").covered(Offset()) == Coverage(SHOP.uid, scope=8)
    before = Coverage(1, collections=(8,))
    assert choosing(collections="shop.a").covered(held(before)) == before
    assert choosing(collections="shop.a").covered(held(None, vb_uuid=0)) == Coverage(SHOP.uid, collections=(8,))
    with pytest.raises(UnknownCollection):
        choosing(collections="shop.c").covered(Offset())


@pytest.mark.parametrize("before", [None, Coverage(1, collections=(8, 9)), Coverage(1, scope=8), Coverage(1)])
def test_another_choice_than_before_is_refused_with_what_it_was(before: Coverage | None) -> None:
    with pytest.raises(OptionError, match="saved with"):
        choosing(collections="shop.a").covered(held(before))
    if before is not None:
        with pytest.raises(OptionError, match="saved with"):
            choosing().covered(held(before))


def test_a_collection_that_was_dropped_since_is_left_out() -> None:
    before, now = Coverage(SHOP.uid, collections=(8, 9)), SHOP.without_collection("shop", "b")
    assert choosing(now, collections="shop.a").covered(held(before)) == Coverage(SHOP.uid, collections=(8,))


BOTH, WHOLE_SCOPE = Coverage(SHOP.uid, collections=(8, 9)), Coverage(SHOP.uid, scope=8)
LEFT = SHOP.without_collection("shop", "b")
EMPTIED = LEFT.without_collection("shop", "a")


@pytest.mark.parametrize("now", [LEFT, EMPTIED, EMPTIED.without_scope("shop")])
def test_who_goes_on_may_still_name_what_was_dropped_as_often_as_he_starts(now: CollectionsManifest) -> None:
    for _ in range(2):
        assert choosing(now, collections="shop.a,shop.b").covered(held(BOTH)) == BOTH


def test_who_reads_a_scope_goes_on_when_it_is_dropped() -> None:
    gone = EMPTIED.without_scope("shop")
    assert choosing(gone, scope="shop").covered(held(WHOLE_SCOPE)) == WHOLE_SCOPE
    with pytest.raises(UnknownScope):
        choosing(gone, scope="shop").covered(Offset())


@pytest.mark.parametrize(
    ("now", "names", "error"),
    [
        (LEFT, "shop.a,shop.b,shop.c", UnknownCollection),  # one was dropped, so one name may mean nothing
        (SHOP, "shop.a,shop.b,shop.c", UnknownCollection),
        (LEFT, "shop.b", UnknownCollection),  # without the one that is left it is another choice
        (LEFT.with_collection("shop", "b", None, 10), "shop.a,shop.b", OptionError),  # another one of the name
    ],
)
def test_a_name_that_never_was_and_one_that_was_made_again_are_refused(
    now: CollectionsManifest, names: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        choosing(now, collections=names).covered(held(BOTH))


def test_vbuckets_without_a_node_are_told_once_a_minute_until_they_have_one(caplog: pytest.LogCaptureFixture) -> None:
    client, clock = FakeClient({vb: FakeVbucket(OLD, range(1, 10)) for vb in range(4)}), Clock()
    nodes, lost = SourceNodes(settings(), lambda _: client, lambda: clock.now), client.vbuckets.pop(2)
    for _ in range(130):
        nodes.observe(idle=True)
        clock.now += 1.0
    assert nodes.ownerless == (1, 129.0)
    what = "1 of 4 vbuckets have no node, and nothing of them is read: 2"
    assert [record.getMessage() for record in caplog.records] == [f"for {n} s: {what}" for n in (5, 65, 125)]
    client.vbuckets[2] = lost
    nodes.observe()
    assert nodes.ownerless == (0, 0.0)
    assert caplog.records[-1].getMessage() == "after 130 s: all vbuckets have a node"


def test_a_vbucket_that_moves_is_nothing_to_speak_of(caplog: pytest.LogCaptureFixture) -> None:
    client, clock = FakeClient({vb: FakeVbucket(OLD, range(1, 10)) for vb in range(4)}), Clock()
    nodes, lost = SourceNodes(settings(), lambda _: client, lambda: clock.now), client.vbuckets.pop(2)
    nodes.observe()
    clock.now += 4.0
    nodes.observe()
    client.vbuckets[2] = lost
    nodes.observe()
    assert caplog.records == []


def test_nodes_that_do_not_answer_are_told_while_they_are_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    client, clock = FakeClient({0: FakeVbucket(OLD, range(1, 10))}), Clock()
    nodes = SourceNodes(settings(retrySeconds="60"), lambda _: client, lambda: clock.now)
    left = [30.0, 30.0]

    def away(question: str) -> None:
        if left:
            clock.now += left.pop()
            raise ConnectionLost("h:1", "gone")

    client.before = away
    nodes.observe()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and told[0].startswith("for 30 s: the nodes can't say how far they are:") and "h:1" in told[0]
    assert told[1] == "after 30 s: the nodes say how far they are"


def many() -> tuple[FakeClient, Clock, SourceNodes]:
    client, clock = FakeClient({vb: FakeVbucket(OLD, range(1, 10)) for vb in range(16)}), Clock()
    nodes = SourceNodes(settings(), lambda _: client, lambda: clock.now)
    nodes.observe()
    client.asked.clear()
    return client, clock, nodes


def test_of_vbuckets_that_rest_nothing_but_the_seqno_is_asked() -> None:
    """A small batch cost the statistics of all: of 1,024 vbuckets 8,192 answers."""
    client, clock, nodes = many()
    client.vbuckets[3] = FakeVbucket(OLD, range(1, 12))
    client.vbuckets[4] = FakeVbucket(OLD, range(1, 10), purge=4)
    seen = nodes.observe(resting=set(range(16)) - {4})
    assert client.asked == ["seqnos", "stats of 3, 4"]
    assert seen[3] == BranchHistory(OLD, 11) and seen[4] == BranchHistory(OLD, 9, 4)
    assert seen[5] == BranchHistory(OLD, 9)
    client.asked.clear()
    assert nodes.observe(resting=range(16)) == seen and client.asked == ["seqnos"]
    clock.now += WHOLE_LOOK_SECONDS
    client.asked.clear()
    assert nodes.observe(resting=range(16)) == seen and client.asked == ["seqnos", "stats"]


def test_the_statistics_of_many_vbuckets_come_at_once() -> None:
    client, _, nodes = many()
    nodes.observe(resting=range(5, 16))
    assert client.asked == ["seqnos", "stats"]


def test_a_failover_of_a_vbucket_that_was_just_read_is_seen_though_its_seqno_is_the_same() -> None:
    client, _, nodes = many()
    client.vbuckets[3] = FakeVbucket(NEW, range(1, 10))
    assert nodes.observe(resting=set(range(16)) - {3})[3] == BranchHistory(NEW, 9)
    assert client.asked == ["seqnos", "stats of 3", "log 3", "seqnos", "stats"]


def test_a_look_at_some_does_not_put_off_the_next_look_at_all() -> None:
    client, clock, nodes = many()
    client.vbuckets[5] = FakeVbucket(NEW, range(1, 10))
    clock.now += WHOLE_LOOK_SECONDS - 0.1
    nodes.observe(resting=set(range(16)) - {3})
    clock.now += 0.1
    assert nodes.observe(idle=True, resting=range(16))[5] == BranchHistory(NEW, 9)


def lost_at(client: FakeClient, number: int, question: str) -> None:
    """The connection is lost when a question is put for this time."""
    left = [number]

    def lose(asked: str) -> None:
        left[0] -= asked == question
        if asked == question and not left[0]:
            raise ConnectionLost("n0:11210", "away")

    client.before = lose


def test_another_try_after_a_failover_was_seen_looks_at_all() -> None:
    client, _, nodes = many()
    client.vbuckets[3] = client.vbuckets[5] = FakeVbucket(NEW, range(1, 10))
    lost_at(client, 2, "seqnos")
    with pytest.raises(ConnectionLost):
        nodes.observe(resting=set(range(16)) - {3})
    assert nodes.observe(resting=set(range(16)) - {3})[5] == BranchHistory(NEW, 9)


def test_a_look_at_all_that_was_lost_halfway_is_due_again() -> None:
    client, clock, nodes = many()
    client.vbuckets[5] = FakeVbucket(NEW, range(1, 10))
    clock.now += WHOLE_LOOK_SECONDS
    lost_at(client, 1, "log 5")
    with pytest.raises(ConnectionLost):
        nodes.observe(resting=range(16))
    assert nodes.observe(resting=range(16))[5] == BranchHistory(NEW, 9)


def test_a_vbucket_that_had_no_node_for_one_try_does_not_rest() -> None:
    client, _, nodes = many()
    away = client.vbuckets.pop(5)
    client.vbuckets[3] = FakeVbucket(NEW, range(1, 10))
    lost_at(client, 2, "seqnos")
    with pytest.raises(ConnectionLost):
        nodes.observe(resting=set(range(16)) - {3})
    client.vbuckets[5] = away
    assert nodes.observe(resting=set(range(16)) - {3})[5] == BranchHistory(OLD, 9)


def test_a_vbucket_that_has_moved_has_all_looked_at() -> None:
    client, _, nodes = many()

    def refuse(question: str) -> None:
        if question == "stats of 3":
            raise NotMyVbucket("stats of vbucket 3")

    client.before = refuse
    assert nodes.observe(resting=set(range(16)) - {3})[3] == BranchHistory(OLD, 9)
    assert client.asked == ["seqnos", "stats of 3", "stats"]
