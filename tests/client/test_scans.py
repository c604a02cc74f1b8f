"""Keys by their prefix, at a real node and at one that answers as told."""

from collections.abc import Iterator

import pytest

from headwater import testing
from headwater.client import OptionError
from headwater.client.blocking import Client
from headwater.client.cluster import Cluster
from headwater.client.scans import KeyPage, WantedKeys, keys_of, keys_page
from headwater.client.settings import settings_for
from headwater.errors import NoAccess, NotMyVbucket, RemoteProtocolError, StatusError
from headwater.testing.peers import Peer, serve
from headwater.transport.blocking import run
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode
from headwater.wire.scans import scanned_key
from headwater.wire.status import Status

KEYS = [b"order::%04d" % number for number in range(300)]
OTHERS = [b"order", b"order:", b"orders", b"\x00", b"\xff" * 250, b"order::" + b"\xff" * 243]


@pytest.fixture(scope="module")
def bucket() -> Iterator[Client]:
    with testing.node(vbuckets=1) as node, node.client() as client:
        client.set_many(dict.fromkeys([*KEYS, *OTHERS], "v"))
        yield client


def all_of(bucket: Client, prefix: bytes, most: int) -> list[bytes]:
    found: list[bytes] = []
    page = KeyPage([], is_last=False)
    while not page.is_last:
        page = bucket.keys_of_vbucket(0, prefix, after=found[-1] if found else b"", most=most)
        assert len(page.keys) <= most and (page.is_last or page.keys)
        found += page.keys
    return found


@pytest.mark.parametrize(
    "prefix", [b"", b"order::", b"order::00", b"o", b"\xff", b"nothing", b"order::" + b"\xff" * 243]
)
@pytest.mark.parametrize("most", [7, 1000])
def test_pages_bring_each_key_of_a_prefix_once_and_in_order(bucket: Client, prefix: bytes, most: int) -> None:
    assert all_of(bucket, prefix, most) == sorted(key for key in [*KEYS, *OTHERS] if key.startswith(prefix))


def test_nothing_is_left_open_on_the_node(bucket: Client) -> None:
    for _ in range(600):
        assert len(bucket.keys_of_vbucket(0, most=2).keys) == 2
    assert bucket.stats("range-scans") == {}


def test_what_comes_behind_the_prefix_is_an_empty_page(bucket: Client) -> None:
    assert bucket.keys_of_vbucket(0, "a", after="b") == KeyPage([], is_last=True)


def test_a_vbucket_that_is_none_and_a_prefix_that_no_key_has_are_refused(bucket: Client) -> None:
    with pytest.raises(OptionError, match="one of the bucket's 1 vbuckets"):
        bucket.keys_of_vbucket(1)
    with pytest.raises(OptionError, match="at most 250 bytes"):
        bucket.keys_of_vbucket(0, b"x" * 251)


def test_parts_that_are_none_are_refused() -> None:
    assert keys_of(scanned_key(b"a") + scanned_key(b"b" * 200)) == [b"a", b"b" * 200]
    for wrong in (b"\x00", b"\x05abc", b"\xfb\x01" + b"x" * 251):
        with pytest.raises(RemoteProtocolError, match="a key of"):
            keys_of(wrong)


class Scanned(Peer):
    """Begins scans, and answers each request to go on with the next of `said`: a status and a value."""

    said: tuple[tuple[int, bytes], ...] = ()
    begun: tuple[int, ...] = ()
    """Statuses of the first requests to begin one; success after them."""

    def answers(self, request: Frame) -> Iterator[Frame]:
        if request.opcode not in (Opcode.RANGE_SCAN_CREATE, Opcode.RANGE_SCAN_CONTINUE):
            yield from super().answers(request)
            return
        self.seen.append(request)
        if request.opcode == Opcode.RANGE_SCAN_CREATE:
            status, self.begun = (self.begun[0], self.begun[1:]) if self.begun else (0, ())
            yield response(request, status, value=b"" if status else bytes(16))
            return
        (status, value), self.said = self.said[0], self.said[1:]
        yield response(request, status, extras=bytes(4) if value else b"", value=value)


def page_of(*said: tuple[int, bytes], begun: tuple[int, ...] = ()) -> KeyPage:
    node = Scanned(vbuckets=1)
    node.said, node.begun = said, begun
    with serve(node) as address:
        cluster = Cluster(settings_for(address, timeout_seconds=1.0, connect_timeout_seconds=60.0))
        run(cluster.connect())
        try:
            return run(keys_page(cluster, None, WantedKeys(0, most=10)))
        finally:
            cluster.close()


COMPLETE = int(Status.RANGE_SCAN_COMPLETE), scanned_key(b"a")


@pytest.mark.parametrize("gone", [Status.KEY_ENOENT, Status.RANGE_SCAN_CANCELLED, Status.NOT_MY_VBUCKET])
def test_a_scan_that_a_move_of_its_vbucket_ended_is_begun_anew(gone: Status) -> None:
    """No such scan is not no such key: a vbucket that moves would look empty."""
    assert page_of((gone, b""), COMPLETE) == KeyPage([b"a"], is_last=True)


def test_a_scan_that_a_move_ended_while_the_node_began_it_is_begun_anew() -> None:
    assert page_of(COMPLETE, begun=(int(Status.RANGE_SCAN_CANCELLED),) * 2) == KeyPage([b"a"], is_last=True)
    with pytest.raises(StatusError, match=r"attempts in"):
        page_of(begun=(int(Status.RANGE_SCAN_CANCELLED),) * 100)


def test_behind_the_highest_key_of_all_is_an_empty_page(bucket: Client) -> None:
    assert bucket.keys_of_vbucket(0, after=b"\xff" * 250) == KeyPage([], is_last=True)


def test_a_scan_that_is_always_gone_is_an_error_and_no_empty_page() -> None:
    with pytest.raises(NotMyVbucket, match=r"ended by its node .* attempts in"):
        page_of(*[(int(Status.KEY_ENOENT), b"")] * 100)


@pytest.mark.parametrize("busy", [Status.ETMPFAIL, Status.EBUSY])
def test_a_node_that_is_too_busy_to_go_on_is_asked_again_while_there_is_time(busy: Status) -> None:
    page = page_of((int(Status.RANGE_SCAN_MORE), scanned_key(b"a")), (int(busy), b""), COMPLETE)
    assert page == KeyPage([b"a"], is_last=True)
    with pytest.raises(StatusError, match=r"attempts in"):
        page_of(*[(int(busy), b"")] * 100)


def test_who_may_not_read_is_refused_at_once() -> None:
    with pytest.raises(NoAccess):
        page_of((int(Status.EACCESS), b""), COMPLETE)
