from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.streams.support import StreamDesk


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[StreamDesk]:
    made = StreamDesk(tmp_path / "store")
    yield made
    made.close()
