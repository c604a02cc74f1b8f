"""Checkpoints of Spark whose last files were cut."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from headwater.pipelines.checkpoint import mend

OFFSET = b'v1\n{"batchWatermarkMs":0}\n{"v":1,"vb":{"0":["00000000000000aa",7]}}'
COMMIT = b'v1\n{"nextBatchWatermarkMs":0}'


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of three batches, the last under way."""
    for number in range(3):
        write(tmp_path / "offsets" / str(number), OFFSET)
    for number in range(2):
        write(tmp_path / "commits" / str(number), COMMIT)
    write(tmp_path / "metadata", b'{"id":"34b88d37-46a4-4c75-94a9-f5ea932a2927"}')
    return tmp_path


def write(path: Path, data: bytes) -> None:
    """As Hadoop does: a sum for each 512 bytes, after a header of `crc`, 0 and that number."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    sums = b"".join(zlib.crc32(data[at : at + 512]).to_bytes(4) for at in range(0, len(data), 512))
    path.with_name(f".{path.name}.crc").write_bytes(b"crc\0\0\0\x02\0" + sums)


def held(checkpoint: Path) -> dict[str, list[str]]:
    return {kind: sorted(path.name for path in (checkpoint / kind).iterdir()) for kind in ("offsets", "commits")}


def test_one_that_is_whole_stays_as_it_is_byte_for_byte(checkpoint: Path) -> None:
    before = {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}
    assert not mend(checkpoint) and not mend(f"file://{checkpoint}")
    assert {path: path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("length", [0, 2, 3, 10, len(OFFSET) - 1, OFFSET.rindex(b"\n"), OFFSET.rindex(b"\n") + 1])
def test_offsets_that_are_cut_are_forgotten_with_all_that_came_after(checkpoint: Path, length: int) -> None:
    (checkpoint / "offsets/1").write_bytes(OFFSET[:length])
    assert not mend(checkpoint)
    assert held(checkpoint) == {"offsets": [".0.crc", "0"], "commits": [".0.crc", "0"]}


@pytest.mark.parametrize("length", range(len(COMMIT)))
def test_a_commit_that_is_cut_is_forgotten_and_its_batch_done_again(checkpoint: Path, length: int) -> None:
    write(checkpoint / "commits/2", COMMIT[:length])
    assert not mend(checkpoint)
    assert held(checkpoint)["commits"] == [".0.crc", ".1.crc", "0", "1"]
    assert held(checkpoint)["offsets"] == [".0.crc", ".1.crc", "0", "1"]


@pytest.mark.parametrize("sums", [b"", b"crc\0", b"crc\0\0\0\x02\0", b"crc\0\0\0\x02\0abcd", b"crc\0\0\0\0\0"])
def test_sums_that_are_cut_are_removed_and_the_file_stays(checkpoint: Path, sums: bytes) -> None:
    (checkpoint / "offsets/.2.crc").write_bytes(sums)
    mend(checkpoint)
    assert (checkpoint / "offsets/2").read_bytes() == OFFSET and not (checkpoint / "offsets/.2.crc").exists()


def test_sums_go_by_pieces(checkpoint: Path) -> None:
    write(checkpoint / "offsets/2", OFFSET[:-1] + b" " * 2000 + b"}")
    mend(checkpoint)
    assert (checkpoint / "offsets/.2.crc").exists()


@pytest.mark.parametrize("told", [b"", b'{"id":"34b88d37'])
def test_a_query_whose_name_is_lost_gets_another(checkpoint: Path, told: bytes) -> None:
    (checkpoint / "metadata").write_bytes(told)
    assert not mend(checkpoint)
    assert len(json.loads((checkpoint / "metadata").read_text())["id"]) == 36
    assert not (checkpoint / ".metadata.crc").exists() and len(held(checkpoint)["offsets"]) == 6


def test_one_that_has_lost_its_beginning_says_so_until_it_has_begun_again(checkpoint: Path) -> None:
    (checkpoint / "offsets/0").write_bytes(b"")
    assert mend(checkpoint) and mend(checkpoint)
    assert held(checkpoint) == {"offsets": [], "commits": []}
    write(checkpoint / "offsets/0", OFFSET)
    assert not mend(checkpoint)


def test_what_is_not_there_and_what_lies_elsewhere_is_left_alone(tmp_path: Path) -> None:
    assert not mend(tmp_path / "none") and not mend("s3a://bucket/checkpoint") and not mend("hdfs://a/b:c")
    assert list(tmp_path.iterdir()) == []
