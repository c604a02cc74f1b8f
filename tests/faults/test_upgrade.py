"""Stores that earlier releases wrote: opened by the code of today they hold every change they held, to the last field;
one that a later release wrote is refused, and left as it is."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from headwater import testing
from headwater.node.storage.text_file import decode_text_file, encode_text_file

STORES = Path(__file__).parent.parent / "data" / "stores"
DOCUMENTS = ("mutation", "deletion", "expiration")
OPTIONS: dict[str, object] = {"vbuckets": 4, "segment_mib": 48}


def unpacked(name: str, to: Path) -> Path:
    with tarfile.open(STORES / f"{name}.tar.gz") as packed:
        packed.extractall(to, filter="data")
    return to / "data"


def changes_of(lines: str) -> list[dict[str, Any]]:
    """Changes of documents as `tail --json` printed them; a later release may tell more of one, not less."""
    rows = [row for row in map(json.loads, lines.splitlines()) if row["event"] in DOCUMENTS]
    return sorted(rows, key=lambda row: (row["vbucket"], row["seqno"]))


def tail(node: testing.Node) -> str:
    command = [sys.executable, "-m", "headwater", "tail", "--once", "--json", "--node", node.url]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=240).stdout


@pytest.mark.parametrize("name", ["format-1", "format-2", "format-3", "format-4"])
def test_a_store_of_an_earlier_release_holds_every_change_and_takes_new_ones(name: str, tmp_path: Path) -> None:
    folder = unpacked(name, tmp_path)
    before = changes_of((tmp_path / "changes.jsonl").read_text("utf-8"))
    node = testing.Node(folder, OPTIONS)
    try:
        node.start()
        after = changes_of(tail(node))
        assert [{field: new.get(field) for field in old} for old, new in zip(before, after, strict=True)] == before
        with node.client() as client:
            assert client.get("bytes").value == bytes(range(256))
            assert client.get("large").value == b"text that repeats " * 4000
            assert client.set("new", "of today") > 0
        node.stop()
        node.start()
        assert len(changes_of(tail(node))) == len(before) + 1
    finally:
        node.kill()


def of_the_future(folder: Path) -> None:
    """Give a store's manifest the next format's number, and a checksum that fits."""
    path = folder / "MANIFEST"
    body = decode_text_file(path.read_bytes(), path, "headwater-store", ("1", "2", "3"), "manifest")
    path.write_bytes(encode_text_file("headwater-store", "99", body))


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "LOCK")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_store_of_a_later_release_is_refused_with_its_number_and_left_alone(tmp_path: Path) -> None:
    folder = unpacked("format-3", tmp_path)
    of_the_future(folder)
    before = digests(folder)
    command = [sys.executable, "-m", "headwater", "serve", "--port", "0", "--data", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    said = [line for line in done.stderr.splitlines() if "kernels" not in line]
    assert len(said) == 1 and "format 99; this headwater reads up to format" in said[0] and "use a newer one" in said[0]
    assert digests(folder) == before
