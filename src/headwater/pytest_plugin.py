"""Fixtures for pytest, there wherever headwater is installed: nodes for your tests.

    def test_a_cart_is_stored(headwater_node):
        with headwater_node.client() as bucket:
            bucket.set("cart:1", "{}")

| fixture | lives as long as | is |
|---|---|---|
| `headwater_node` | the test | an empty node of 64 vbuckets |
| `headwater_module_node` | the module | the same, shared by the module's tests, which see what the others wrote |
| `headwater_session_node` | the run | the same, shared by all tests |
| `headwater_new_node` | the test | call it for nodes with options of their own: `headwater_new_node(vbuckets=4)` |
| `headwater_cluster` | the test | three nodes as one bucket, with a replica of each vbucket |

Each worker of pytest-xdist has nodes of its own: on free ports, in folders that go with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from headwater.testing.cluster import Cluster
    from headwater.testing.node import Node

# pytest loads this file in every run of everybody who has headwater installed: what is heavy is imported when used.


class NewNode(Protocol):
    """Makes nodes; the keywords are those of `headwater.testing.node`."""

    def __call__(self, **options: Any) -> Node:
        """Start one more node, which is stopped after the test."""


def _single_node() -> Iterator[Node]:
    from headwater.testing.node import node  # noqa: PLC0415

    with node() as running:
        yield running


@pytest.fixture
def headwater_node() -> Iterator[Node]:
    """An empty node of 64 vbuckets for one test."""
    yield from _single_node()


@pytest.fixture(scope="module")
def headwater_module_node() -> Iterator[Node]:
    """A node of 64 vbuckets that the tests of a module share."""
    yield from _single_node()


@pytest.fixture(scope="session")
def headwater_session_node() -> Iterator[Node]:
    """A node of 64 vbuckets that all tests share (those of one worker, under pytest-xdist)."""
    yield from _single_node()


@pytest.fixture
def headwater_new_node() -> Iterator[NewNode]:
    """Make nodes with options of your own: `headwater_new_node(vbuckets=4, user="ann", ...)`."""
    from headwater.testing.node import node  # noqa: PLC0415

    with ExitStack() as running:

        def make(**options: Any) -> Node:
            return running.enter_context(node(**options))

        yield make


@pytest.fixture
def headwater_cluster() -> Iterator[Cluster]:
    """Three nodes as one bucket of 64 vbuckets, with a replica of each."""
    from headwater.testing.cluster import cluster  # noqa: PLC0415

    with cluster() as running:
        yield running
