"""An application with Couchbase's Node.js SDK; see README.md."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop import sdk_story
from tests.interop.toolchains import NODE, needs, node_program, pinned

HERE = Path(__file__).parent
pytestmark = [pytest.mark.interop, pytest.mark.battery, needs(NODE)]
VERSION = pinned(HERE, "couchbase")


@pytest.mark.parametrize("way", sdk_story.ways("Node.js SDK", VERSION))
def test_the_node_sdk_does_what_an_application_does(way: str, tmp_path: Path, compared: Callable[[int], None]) -> None:
    compared(sdk_story.tell(["node", node_program(HERE, "documents.js")], way, tmp_path))
