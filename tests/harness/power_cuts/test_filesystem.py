"""The disk of power cuts, mounted, by real calls of the system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.power_cuts.mounted import mounted, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no power cuts: {why_not()}")


def sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    os.fsync(opened)
    os.close(opened)


def test_what_was_synced_is_mounted_again_and_nothing_else(tmp_path: Path) -> None:
    with mounted(tmp_path) as disk:
        for name in ("kept", "nameless", "empty"):
            (tmp_path / name).write_bytes(b"v" * 5000)
            if name != "empty":
                sync(tmp_path / name)
            if name == "kept":
                (tmp_path / "folder").mkdir()
                sync(tmp_path)
        (tmp_path / "empty").rename(tmp_path / "kept")
        assert (tmp_path / "kept").stat().st_size == 5000
        disk.freeze()
        with pytest.raises(OSError, match="Input/output"):
            (tmp_path / "kept").stat()
        disk.restore(seed=1, lose=1.0)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "kept"]
        assert (tmp_path / "kept").read_bytes() == b"v" * 5000
        assert not disk.is_frozen() and disk.cuts == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_grown_cut_linked_and_read_as_on_any_disk(tmp_path: Path) -> None:
    with mounted(tmp_path):
        opened = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(opened, 0, 10_000)
        assert os.fstat(opened).st_blocks * 512 >= 10_000
        os.pwrite(opened, b"end", 9_997)
        os.link(tmp_path / "a", tmp_path / "b")
        os.ftruncate(opened, 9_998)
        (tmp_path / "a").unlink()
        assert os.pread(opened, 5, 9_995) == b"\0\0e"
        os.close(opened)
        assert (tmp_path / "b").read_bytes() == bytes(9_997) + b"e"
        (tmp_path / "b").write_bytes(b"anew")
        assert (tmp_path / "b").read_bytes() == b"anew"


def test_a_change_that_is_named_finds_the_power_gone(tmp_path: Path) -> None:
    with mounted(tmp_path) as disk:
        disk.cut_at(2)
        (tmp_path / "first").touch()
        with pytest.raises(OSError, match="Input/output"):
            (tmp_path / "second").touch()
        assert disk.is_frozen()
        disk.restore(seed=1, lose=0.0)
        assert [path.name for path in tmp_path.iterdir()] == ["first"]
