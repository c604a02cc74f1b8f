"""Documents by key, over both clients, against a real node; and errors, against one that is scripted."""

import datetime

import pytest

from headwater import testing
from headwater.client import cluster
from headwater.client.kv import Document, DocumentMeta, Operations, as_expiry
from headwater.client.settings import settings_for
from headwater.client.writes import WriteWithMeta
from headwater.errors import (
    AuthError,
    BucketNotFound,
    ConnectionLost,
    KeyExists,
    KeyNotFound,
    NoAccess,
    NotANumber,
    NotMyVbucket,
    NotStored,
    OptionError,
    PeerSilent,
    RemoteProtocolError,
    TemporaryFailure,
)
from headwater.testing.peers import Peer, cluster_map, serve
from headwater.transport.backoff import for_requests
from headwater.transport.blocking import run
from headwater.wire import xattr
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State


@pytest.fixture(scope="module")
def node():
    with testing.node(vbuckets=16) as running:
        yield running


@pytest.fixture
def bucket(driver, node):
    return driver.connect(f"couchbase://{node.address}/default")


def test_a_missing_document_is_the_default_where_one_is_given(bucket):
    bucket.set("there", "v")
    assert (bucket.get("there", None).text, bucket.get("missing", None), bucket.get("missing", 7)) == ("v", None, 7)
    assert (bucket.exists("there"), bucket.exists("missing")) == (True, False)
    with pytest.raises(KeyNotFound):
        bucket.get("missing")
    with pytest.raises(OptionError):
        bucket.get("", None)


def test_the_blocking_client_knows_the_word_in(node):
    with node.client() as bucket:
        bucket.set("there", "v")
        assert "there" in bucket and b"there" in bucket and "missing" not in bucket
        assert "there" in bucket.collection("_default._default")


def test_a_bucket_that_is_gone_is_no_missing_document():
    """A connection that is made again may find that the bucket was dropped: nothing is known of its documents."""
    operations = Operations(cluster.Cluster(settings_for("127.0.0.1:1")))

    def gone(asked, answer):
        raise BucketNotFound('select bucket "default"')
        yield

    operations._call = gone
    with pytest.raises(BucketNotFound):
        run(operations.get("k", None))


def test_what_a_value_says_as_text_and_as_json():
    document = Document(b"k", '{"a": "é"}'.encode(), 1)
    assert (document.json(), document.text, document.body) == ({"a": "é"}, '{"a": "é"}', document.value)
    for reads in (lambda: Document(b"k", b"\xff", 1).text, Document(b"k", b"\xff", 1).json):
        with pytest.raises(ValueError, match="utf-8"):
            reads()


def test_extended_attributes_are_read_by_name(driver, node):
    with_xattrs = driver.connect(f"couchbase://{node.address}/default", xattrs=True)
    value = xattr.join({"_sync": b'{"rev":1}', "note": b'"hello"'}, b"body")
    write = WriteWithMeta(b"attributed", value, 0, 0, cas=7, rev_seqno=1, datatype=4, force=True)
    assert with_xattrs.write_many([write]) == {}
    assert with_xattrs.get("attributed").value == b"body"
    assert with_xattrs.get_xattrs("attributed") == {"_sync": b'{"rev":1}', "note": b'"hello"'}
    with_xattrs.set("plain", "v")
    assert with_xattrs.get_xattrs("plain") == {}
    with pytest.raises(KeyNotFound):
        with_xattrs.get_xattrs("not-there")


def test_a_document_is_stored_read_and_deleted(bucket):
    cas = bucket.set("doc", '{"a":1}', flags=7)
    assert bucket.get("doc") == Document(b"doc", b'{"a":1}', cas, 7, 1)
    bucket.delete(b"doc", cas=cas)
    with pytest.raises(KeyNotFound, match='get "doc"'):
        bucket.get("doc")


def test_a_cas_protects_what_others_wrote(bucket):
    old = bucket.set("cas", "1")
    bucket.set("cas", "2")
    for write in (bucket.set, bucket.replace):
        with pytest.raises(KeyExists):
            write("cas", "3", cas=old)
    assert bucket.get("cas").value == b"2"


def test_add_replace_append_and_prepend_mind_what_is_there(bucket):
    bucket.delete_many(["fresh"])
    for write in (bucket.append, bucket.prepend):
        with pytest.raises(NotStored):
            write("fresh", "x")
    with pytest.raises(KeyNotFound):
        bucket.replace("fresh", "x")
    bucket.add("fresh", "b")
    with pytest.raises(KeyExists):
        bucket.add("fresh", "b")
    bucket.append("fresh", "c")
    bucket.prepend("fresh", "a")
    assert bucket.get("fresh").value == b"abc"


def test_numbers_are_counted_up_and_down_to_zero(bucket):
    bucket.delete_many(["number"])
    with pytest.raises(KeyNotFound):
        bucket.incr("number")
    assert [bucket.incr("number", initial=5), bucket.incr("number", 10), bucket.decr("number", 100)] == [5, 15, 0]
    bucket.set("text", "ten")
    with pytest.raises(NotANumber):
        bucket.incr("text")


@pytest.mark.parametrize("value", [10, 0, [104, 105], None, 1.5, {"a": 1}])
def test_what_is_neither_text_nor_bytes_is_refused_and_nothing_is_stored(bucket, value):
    bucket.set("kept", "as it was")
    for store in (lambda: bucket.set("kept", value), lambda: bucket.set_many({"kept": value})):
        with pytest.raises(TypeError, match="a value is text or bytes, not"):
            store()
    assert bucket.get("kept").value == b"as it was"
    with pytest.raises(TypeError, match="a key is text or bytes, not"):
        bucket.get(value)


def test_a_json_document_is_stored_as_the_sdks_do_and_read_back(bucket):
    told = {"name": "Zoë", "prices": [10, 1.5, None], "ok": True}
    bucket.set_json("as-json", told)
    found = bucket.get("as-json")
    assert found.value == '{"name":"Zoë","prices":[10,1.5,null],"ok":true}'.encode()
    assert (found.json(), found.flags) == (told, 0x02000000)
    bucket.set_json("a-number", 10)
    assert bucket.incr("a-number") == 11


def test_what_is_no_json_is_refused_and_nothing_is_stored(bucket):
    with pytest.raises(OptionError, match="Out of range float values"):
        bucket.set_json("not-json", {"v": float("nan")})
    with pytest.raises(TypeError, match="bytes"):
        bucket.set_json("not-json", {"v": b"x"})
    assert bucket.get_many(["not-json"]) == {}


def test_statistics_are_told_node_by_node(bucket, node):
    assert bucket.stats_by_node()[node.address]["pid"] == str(node.pid)


def test_an_expiry_can_be_given_later(bucket):
    bucket.set("brief", "v")
    assert bucket.gat("brief", 1000).value == b"v" and bucket.touch("brief", 0) >= 0


def test_many_documents_go_out_together_and_failures_come_back_by_key(bucket):
    items = {f"many-{i}": f"value {i}" for i in range(5000)}
    assert bucket.set_many(items) == {}
    read = bucket.get_many([*items, "many-none"])
    assert {key.decode(): document.value.decode() for key, document in read.items()} == items
    failed = bucket.delete_many(["many-0", "many-none"])
    assert list(failed) == [b"many-none"] and isinstance(failed[b"many-none"], KeyNotFound)


def test_large_documents_go_out_together_as_well(bucket):
    assert bucket.set_many((f"large-{i}", bytes(1 << 20)) for i in range(5)) == {}
    assert {len(document.value) for document in bucket.get_many(f"large-{i}" for i in range(5)).values()} == {1 << 20}


def test_the_node_tells_about_itself(bucket):
    bucket.noop()
    assert bucket.version()[0].isdigit() and bucket.map.vbuckets == 16 and "uuid" in bucket.stats("uuid")


def test_a_write_shows_in_the_seqnos_and_the_failover_log_has_a_beginning(bucket):
    before = bucket.seqnos()
    bucket.set("counted", "v")
    changed = {vb: seqno - before[vb] for vb, seqno in bucket.seqnos().items() if seqno != before[vb]}
    assert changed == {bucket.vbucket_of("counted"): 1}
    assert bucket.failover_log(3)[-1][1] == 0
    assert bucket.failover_logs([3]) == {3: bucket.failover_log(3)}


def test_the_state_of_a_vbucket_is_set_and_read(bucket):
    bucket.set_vbucket_state(15, "replica")
    assert bucket.get_vbucket_state(15) is State.REPLICA
    bucket.set_vbucket_state(15, State.ACTIVE)
    with pytest.raises(OptionError, match="active, replica, pending or dead"):
        bucket.set_vbucket_state(15, "sleeping")


@pytest.mark.parametrize("key", ["", "k" * 251])
def test_a_key_that_can_not_be_is_refused_here(bucket, key):
    with pytest.raises(OptionError, match="1 to 250 bytes"):
        bucket.get(key)


def test_a_client_finds_its_node_again_after_a_restart(driver):
    with testing.node(vbuckets=4) as node:
        client = driver.connect(f"{node.address}/default")
        client.set("before", "1")
        node.kill()
        node.restart()
        assert client.get("before").value == b"1"
        client.set("after", "2")


def test_nobody_there_is_told_at_once(driver):
    with serve(Peer()) as address:
        pass
    with pytest.raises(ConnectionLost, match=address):
        driver.connect(address)


# --------------------------------------------------------------------------- scripted


class Documents(Peer):
    """A peer that answers GET and SET with a list of statuses, one after the other."""

    statuses: list[int]

    def answers(self, request: Frame):
        if request.opcode in (Opcode.GET, Opcode.SET):
            self.seen.append(request)
            status = self.statuses.pop(0) if self.statuses else 0
            extras = bytes(4) if request.opcode == Opcode.GET and not status else b""
            yield response(request, status, extras=extras, value=b"" if status else b"v")
        else:
            yield from super().answers(request)


def scripted(*statuses: int, **options) -> Documents:
    peer = Documents(vbuckets=2, **options)
    peer.statuses = list(statuses)
    return peer


RETRIABLE = [
    Status.ETMPFAIL,
    Status.ENOMEM,
    Status.EBUSY,
    Status.NOT_MY_VBUCKET,
    Status.SYNC_WRITE_IN_PROGRESS,
    Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS,
]


@pytest.mark.parametrize("status", RETRIABLE)
def test_what_may_be_retried_is(driver, status):
    with serve(scripted(status, status)) as address:
        client = driver.connect(address)
        assert client.get("k").value == b"v"


def test_retrying_ends_with_the_last_reason(driver, monkeypatch):
    monkeypatch.setattr(cluster, "for_requests", for_requests)  # the last answer may take as long as the last delay
    with serve(scripted(*[Status.ETMPFAIL] * 10_000)) as address, pytest.raises(TemporaryFailure, match='set "k"'):
        driver.connect(address, timeout_seconds=3.0).set("k", "v")


def test_a_key_goes_to_the_node_that_the_new_map_names(driver):
    first, second = scripted(Status.NOT_MY_VBUCKET), scripted()
    owners = [0, 0]
    first.config = second.config = lambda _: cluster_map([first.address, second.address], owners, rev=1 + sum(owners))
    with serve(first) as address, serve(second):
        client = driver.connect(address)
        owners[:] = [1, 1]
        assert client.get("k").value == b"v"
    assert [frame.opcode for frame in second.seen].count(Opcode.GET) == 1


def test_a_vbucket_that_stays_without_a_node_is_named(driver):
    peer = scripted()
    peer.config = lambda address: cluster_map([address], [-1, -1])
    with serve(peer) as address, pytest.raises(NotMyVbucket, match="no active node"):
        driver.connect(address, timeout_seconds=0.5).get("k")


def test_a_read_is_repeated_on_a_new_connection_and_a_write_is_not(driver):
    peer = scripted()

    def drop_first_answer(frame: Frame) -> bytes:
        if frame.opcode in (Opcode.GET, Opcode.SET) and peer.connections == 1:
            return b""
        return frame.encode()

    with serve(peer) as address:
        client = driver.connect(address, timeout_seconds=3.0)
        peer.mutate = drop_first_answer
        unknown = r"silent for 3\S* s; whether .* is not known, read it before retrying, or repeat it with its CAS"
        with pytest.raises(PeerSilent, match=unknown):
            client.set("k", "v")
        assert client.get("k").value == b"v"
        peer.mutate = lambda frame: b"" if frame.opcode == Opcode.NOOP else frame.encode()
        hasty = driver.connect(address, timeout_seconds=0.4)
        with pytest.raises(PeerSilent, match=r"whether 2 SETQ requests, the first for b'k' was stored is not known"):
            hasty.set_many({"k": "v", "l": "w"})
        peer.mutate = lambda frame: b"" if frame.opcode == Opcode.GET else frame.encode()
        with pytest.raises(PeerSilent, match="is it a node's port"):
            hasty.get("k")


def test_an_answer_to_another_question_ends_the_connection(driver):
    peer = scripted()
    with serve(peer) as address:
        client = driver.connect(address)
        peer.mutate = lambda frame: Frame(0x81, frame.opcode, opaque=frame.opaque + 1).encode()
        with pytest.raises(RemoteProtocolError, match="was not asked"):
            client.get("k")


# --------------------------------------------------------------------------- logging in


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    secret = tmp_path_factory.mktemp("secret") / "password"
    secret.write_text("pencil\n")
    secret.chmod(0o600)
    with testing.node(vbuckets=4, user="user", password_file=secret) as running:
        yield running


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA512", "SCRAM-SHA256", "SCRAM-SHA1", "PLAIN"])
def test_every_mechanism_lets_the_right_password_in_and_no_other(driver, guarded, mechanism):
    client = driver.connect(guarded.address, "user", "pencil", mechanisms=(mechanism,))
    client.set("k", "v")
    with client.changes(until="now") as changes:
        assert any(getattr(event, "key", b"") == b"k" for event in changes)
    with pytest.raises(AuthError, match=f'log in as "user" by {mechanism}'):
        driver.connect(guarded.address, "user", "pen", mechanisms=(mechanism,))


def test_nobody_gets_in_without_a_name(driver, guarded):
    with pytest.raises(NoAccess):
        driver.connect(guarded.address).get("k")


@pytest.mark.parametrize(
    ("expiry", "wire"),
    [
        (0, 0),
        (2_592_000, 2_592_000),
        (2_000_000_000, 2_000_000_000),
        (datetime.timedelta(seconds=90), 90),
        (datetime.timedelta(milliseconds=1), 1),
        (datetime.timedelta(days=60), 1_700_000_000 + 60 * 86_400),
        (datetime.datetime(2033, 5, 18, 3, 33, 20, tzinfo=datetime.UTC), 2_000_000_000),
    ],
)
def test_an_expiry_is_seconds_a_length_of_time_or_a_moment(expiry, wire):
    assert as_expiry(expiry, now_seconds=1_700_000_000) == wire


@pytest.mark.parametrize(
    "expiry", [60 * 86_400, -1, 2**32, datetime.timedelta(seconds=-1), datetime.datetime(2033, 5, 18)]
)
def test_an_expiry_that_would_delete_at_once_or_means_no_moment_is_refused(expiry):
    with pytest.raises(OptionError, match="timedelta"):
        as_expiry(expiry, now_seconds=1_700_000_000)


@pytest.mark.parametrize("expiry", [1.5, "60", True, None])
def test_an_expiry_of_another_type_is_refused(expiry):
    with pytest.raises(TypeError, match="an expiry is seconds, a timedelta or a datetime"):
        as_expiry(expiry, now_seconds=1_700_000_000)


def test_a_document_that_is_to_live_two_months_does(node):
    with node.client() as bucket:
        bucket.set("months", "v", expiry=datetime.timedelta(days=60))
        assert bucket.set_many({"many": "v"}, expiry=datetime.timedelta(days=60)) == {}
        assert bucket.get_many(["months", "many"]).keys() == {b"months", b"many"}
        with pytest.raises(OptionError, match="timedelta"):
            bucket.set("months", "v", expiry=60 * 86_400)


def test_metadata_comes_without_the_value_and_of_a_tombstone_as_well(bucket):
    cas = bucket.set("meta", "{}", flags=7, expiry=4_000_000_000)
    first = bucket.get_meta("meta")
    assert first == DocumentMeta(cas, 7, 4_000_000_000, first.revision, 1, False)
    gone = bucket.delete("meta")
    meta = bucket.get_meta("meta")
    assert (meta.cas, meta.revision, meta.deleted) == (gone, first.revision + 1, True)
    with pytest.raises(KeyNotFound, match='get_meta "never"'):
        bucket.get_meta("never")


def test_half_a_character_is_told_as_what_it_is(bucket):
    for call in (lambda: bucket.get("a\udcff"), lambda: bucket.set("a", "b\ud800")):
        with pytest.raises(OptionError, match="half a character"):
            call()
