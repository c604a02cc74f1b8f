"""The hash that tells machine code of other sources apart."""

from __future__ import annotations

from pathlib import Path

from headwater.kernels import sources


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
