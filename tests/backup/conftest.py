"""A bucket to back up and an empty one to restore into, four vbuckets each."""

from collections.abc import Iterator

import pytest

from headwater import testing


@pytest.fixture
def bucket() -> Iterator[testing.Node]:
    with testing.node(vbuckets=4) as running:
        yield running


@pytest.fixture
def empty() -> Iterator[testing.Node]:
    with testing.node(vbuckets=4) as running:
        yield running
