"""The program that has the disk, as its caller sees it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.power_cuts import mounted as module
from harness.power_cuts.mounted import PowerCutDisk, mounted, why_not


def test_a_disk_that_ends_by_itself_says_so_instead_of_hanging() -> None:
    with (
        subprocess.Popen(
            [sys.executable, "-c", ""], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
        pytest.raises(OSError, match="the disk of power cuts ended before it said 'mounted'"),
    ):
        PowerCutDisk(process).wait()


@pytest.mark.skipif(bool(why_not()), reason=f"no power cuts: {why_not()}")
def test_a_file_that_is_left_open_does_not_hold_the_end_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNMOUNT_SECONDS", 0.5)
    with mounted(tmp_path) as disk:
        left = (tmp_path / "a").open("wb")
        assert not disk.is_frozen()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="not connected"):
        left.close()


def test_a_disk_that_ends_for_want_of_a_part_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "why_not", lambda: "no mfusepy")
    ends = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with ends as process, pytest.raises(OSError, match="ended before it said 'mounted': no mfusepy"):
        PowerCutDisk(process).wait()


@pytest.mark.parametrize(
    ("missing", "why"),
    [("find_library", "no libfuse 3 (Debian: fuse3)"), ("may_mount", "only root may mount")],
)
def test_a_machine_without_one_of_the_parts_is_told_which(
    monkeypatch: pytest.MonkeyPatch, missing: str, why: str
) -> None:
    monkeypatch.setattr(module, "may_mount", lambda: missing != "may_mount")
    monkeypatch.setattr(module, "find_library", lambda name: None)
    monkeypatch.setattr(Path, "exists", lambda path: True)
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: name)
    assert why_not() == why
