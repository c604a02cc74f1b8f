"""pytest with a real node: a process of its own, on a free port, with an empty directory.

`node.kill()` and `node.restart()` make a crash part of a test.
"""

from collections.abc import Iterator

import pytest

from headwater import client, testing
from headwater.errors import KeyExists, KeyNotFound


@pytest.fixture(scope="module")
def node() -> Iterator[testing.Node]:
    with testing.node(vbuckets=16) as running:
        yield running


@pytest.fixture
def bucket(node: testing.Node) -> Iterator[client.Client]:
    with client.connect(node.url) as connected:
        yield connected


def test_an_order_that_was_stored_is_read_back(bucket: client.Client) -> None:
    bucket.set("order-1", '{"state": "new"}', flags=7)
    assert (bucket.get("order-1").value, bucket.get("order-1").flags) == (b'{"state": "new"}', 7)


def test_a_stale_cas_does_not_overwrite(bucket: client.Client) -> None:
    seen = bucket.set("order-2", "new")
    bucket.set("order-2", "paid")
    with pytest.raises(KeyExists):
        bucket.set("order-2", "cancelled", cas=seen)


def test_what_was_acknowledged_survives_kill_9(node: testing.Node) -> None:
    with client.connect(node.url) as before:
        before.set("order-3", "paid")
        before.delete("order-1")
    node.kill()
    node.restart()
    with client.connect(node.url) as after:
        assert after.get("order-3").value == b"paid"
        with pytest.raises(KeyNotFound):
            after.get("order-1")
