"""An application with Couchbase's Java SDK; see README.md."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop import sdk_story
from tests.interop.toolchains import JAVA, java_program, needs, pinned

HERE = Path(__file__).parent
pytestmark = [pytest.mark.interop, pytest.mark.battery, needs(JAVA)]
VERSION = pinned(HERE, "java-client")


@pytest.mark.parametrize("way", sdk_story.ways("Java SDK", VERSION))
def test_the_java_sdk_does_what_an_application_does(way: str, tmp_path: Path, compared: Callable[[int], None]) -> None:
    compared(sdk_story.tell(["java", "-cp", java_program(HERE), "headwater.Documents"], way, tmp_path))
