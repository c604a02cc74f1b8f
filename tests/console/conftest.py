"""A node that the tests of a file share, and a console of it."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from headwater import testing

from .support import console


@pytest.fixture(scope="module")
def node() -> Iterator[testing.Node]:
    with testing.node(vbuckets=16) as running:
        yield running


@pytest.fixture(scope="module")
def browser(node: testing.Node) -> Iterator[TestClient]:
    with console(node.url) as made:
        yield made
