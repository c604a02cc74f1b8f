"""An application with Couchbase's Python SDK; see README.md."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop import sdk_story
from tests.interop.toolchains import python_version

HERE = Path(__file__).parent
pytestmark = [pytest.mark.interop, pytest.mark.battery]
VERSION = python_version("couchbase")


@pytest.mark.parametrize("way", sdk_story.ways("Python SDK", VERSION))
def test_the_python_sdk_does_what_an_application_does(
    way: str, tmp_path: Path, compared: Callable[[int], None]
) -> None:
    compared(sdk_story.tell([sys.executable, str(HERE / "documents.py")], way, tmp_path))
