"""The patches of seeded bugs: each has a heading, and applies to the product of today."""

from __future__ import annotations

import filecmp
from pathlib import Path

import pytest

from harness.mutants.judges import JUDGES
from harness.mutants.patches import FOLDER, ROOT, Stale, apply, every, files_of, read


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.patch")), ids=lambda path: path.stem)
def test_a_patch_applies_to_the_product_of_today_and_changes_it(path: Path, tmp_path: Path) -> None:
    mutant = read(path)
    for name in files_of(mutant):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    apply(mutant, tmp_path)
    for name in files_of(mutant):
        assert not filecmp.cmp(tmp_path / name, ROOT / name, shallow=False)
        compile((tmp_path / name).read_text("utf-8"), name, "exec")


def test_patches_leave_alone_what_kernels_are_compiled_from() -> None:
    for mutant in every():
        assert not any("/kernels/" in name or "/headwater/wire/" in name for name in files_of(mutant)), mutant.name


def test_every_patch_names_a_judge_that_there_is() -> None:
    assert {mutant.judge for mutant in every()} <= set(JUDGES)


def test_a_patch_of_a_file_that_has_changed_is_named(tmp_path: Path) -> None:
    mutant = every()[0]
    for name in files_of(mutant):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("something else\n")
    with pytest.raises(Stale, match=f"{mutant.name}.patch does not apply"):
        apply(mutant, tmp_path)


def test_a_heading_without_a_judge_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.patch").write_text("Title: a bug\nBreaks: a promise\n\ndiff --git a/x b/x\n")
    with pytest.raises(Stale, match="no line 'Judge'"):
        read(tmp_path / "one.patch")
