from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.tap.support import TapDesk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[TapDesk]:
    made = TapDesk(tmp_path / "store", vbuckets=64, keep_alive_seconds=60)
    yield made
    made.close()
