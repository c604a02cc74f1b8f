"""An application with Couchbase's Go SDK; see README.md."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop import sdk_story
from tests.interop.toolchains import GO, go_program, needs, pinned

HERE = Path(__file__).parent
pytestmark = [pytest.mark.interop, pytest.mark.battery, needs(GO)]
VERSION = pinned(HERE, "github.com/couchbase/gocb/v2")


@pytest.mark.parametrize("way", sdk_story.ways("Go SDK gocb", VERSION))
def test_the_go_sdk_does_what_an_application_does(way: str, tmp_path: Path, compared: Callable[[int], None]) -> None:
    compared(sdk_story.tell([go_program(HERE)], way, tmp_path))
