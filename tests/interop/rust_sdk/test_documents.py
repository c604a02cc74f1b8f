"""An application with Couchbase's Rust SDK; see README.md."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop import sdk_story
from tests.interop.toolchains import RUST, needs, pinned, rust_program

HERE = Path(__file__).parent
pytestmark = [pytest.mark.interop, pytest.mark.battery, needs(RUST)]
VERSION = pinned(HERE, "couchbase")
HAS_NOT = {"scanned", "transacted"}
WHAT = "documents, sub-documents, collections, durability; the SDK has no scans, no transactions"
CHECKS = " ".join(check for check in sdk_story.CHECKS.split() if check not in HAS_NOT)


@pytest.mark.parametrize("way", sdk_story.ways("Rust SDK", VERSION, WHAT))
def test_the_rust_sdk_does_what_an_application_does(way: str, tmp_path: Path, compared: Callable[[int], None]) -> None:
    compared(sdk_story.tell([rust_program(HERE)], way, tmp_path, CHECKS))
