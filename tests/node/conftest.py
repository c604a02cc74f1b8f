from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.support import Desk, Talk, desk


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[Desk]:
    with desk(tmp_path / "store") as made:
        yield made


@pytest.fixture
def talk(counter: Desk) -> Talk:
    return counter.session()


@pytest.fixture
def plain(counter: Desk) -> Talk:
    """A session whose every request takes the plain path."""
    counter.fast = False
    return counter.session()
