"""The hash that tells machine code of other sources apart."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headwater.kernels import jit, sources


def test_any_change_of_any_source_is_another_cache(tmp_path: Path) -> None:
    package, other = tmp_path / "package", tmp_path / "other"
    for folder in (package, other):
        folder.mkdir()
    (package / "a.py").write_text("ONE = 1")
    first = sources.source_hash((package, other))
    (other / "b.py").write_text("TWO = 2")
    second = sources.source_hash((package, other))
    (package / "a.py").write_text("ONE = 2")
    third = sources.source_hash((package, other))
    assert len({first, second, third}) == 3
    assert sources.source_hash((package, other)) == third
    assert len(first) == 16


def test_what_numba_alone_needs_is_part_of_the_compiler_and_not_of_the_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "kernels"
    shutil.copytree(sources.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(sources, "PACKAGE", package)
    monkeypatch.setattr(jit, "PACKAGE", package)
    monkeypatch.setattr(jit, "toolchain", jit.toolchain.__wrapped__)
    kernels, compiler = sources.source_hash((package,)), jit.toolchain()
    for name in sources.NUMBAS:
        (package / f"{name}.py").write_text("")
        assert sources.source_hash((package,)) == kernels
        assert compiler != (compiler := jit.toolchain())
    (package / "scan.py").write_text("")
    assert (sources.source_hash((package,)) != kernels, jit.toolchain()) == (True, compiler)
