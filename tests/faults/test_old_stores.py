"""Folders that an earlier version wrote open, hold what they held, and get from then on what they lacked."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from headwater import testing
from tests.faults.test_damage import cut_in_half, refusal, segments
from tests.node.wire import Client

STORES = Path(__file__).parent.parent / "data" / "stores"
OPTIONS: dict[str, object] = {"vbuckets": 2, "segment_mib": 48}


def unpacked(name: str, to: Path) -> Path:
    with tarfile.open(STORES / f"{name}.tar.gz") as packed:
        packed.extractall(to, filter="data")
    return to / "data"


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_store_of_before_opens_and_is_guarded_from_then_on(how: str, tmp_path: Path) -> None:
    folder = unpacked(f"format-1-{how}", tmp_path)
    node = testing.Node(folder, OPTIONS)
    try:
        node.start()
        with Client(node.port) as client:
            for number in range(39):
                assert client.ask(0, key=b"k%d" % number, vbucket=number % 2).value == b"%d-2" % number
            assert client.ask(0, key=b"k39", vbucket=1).status == 1
            assert b'"rev":1,"revEpoch":2' in client.ask(0xB5).value
            assert client.ask(1, key=b"k0", extras=bytes(8), value=b"new").status == 0
        node.kill()
        cut_in_half(segments(folder)[-1])
    finally:
        node.kill()
    assert "batches up to byte" in refusal(folder, OPTIONS) or "was made with" in refusal(folder, OPTIONS)
    assert "Traceback" not in node.log
