"""Small disks are real ones, and gone afterwards."""

from __future__ import annotations

import errno
from pathlib import Path
from shutil import disk_usage

import pytest

from harness.small_disk import KINDS, may_mount, small_filesystem

if may_mount():

    @pytest.mark.parametrize("kind", KINDS)
    def test_it_is_as_large_as_was_asked_for_and_no_more_fits(kind: str, tmp_path: Path) -> None:
        small = tmp_path / "small"
        with small_filesystem(small, 16, kind):
            assert 12 << 20 < disk_usage(small).total <= 16 << 20
            with pytest.raises(OSError) as full, (small / "file").open("wb", buffering=0) as file:
                while file.write(bytes(1 << 16)):
                    pass
            assert full.value.errno == errno.ENOSPC
        assert not list(small.iterdir()) and not list(tmp_path.glob("*.image"))
