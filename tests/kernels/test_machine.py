"""Where a library with machine code is looked for, and when it is passed over. What one does: tests/native."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from headwater.kernels import machine


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder in place of the package's."""
    monkeypatch.delenv(machine.VARIABLE, raising=False)
    monkeypatch.setattr(machine, "PACKAGE", tmp_path)
    monkeypatch.setattr(machine, "source_hash", lambda: "of now")
    return tmp_path


def load(monkeypatch: pytest.MonkeyPatch, sources: str) -> None:
    """Let any file be a library that was made of such sources."""
    library = SimpleNamespace(SOURCES=sources, KERNELS={"scan.scan_frames": len})
    monkeypatch.setattr(machine, "_load", lambda path: library)


def test_a_checkout_has_none(package: Path) -> None:
    assert machine.functions() is None


def test_one_in_the_package_of_the_same_sources_is_taken(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package / "_machine.abi3.so").touch()
    load(monkeypatch, "of now")
    assert machine.functions() == {"scan.scan_frames": len}


def test_one_in_the_package_of_other_sources_is_passed_over(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package / "_machine.abi3.so").touch()
    load(monkeypatch, "of yesterday")
    assert machine.functions() is None


def test_one_in_the_package_that_does_not_load_is_passed_over(package: Path) -> None:
    """The library may be of another system, or for processors that are newer than this one."""
    (package / "_machine.abi3.so").write_bytes(b"no library")
    assert machine.functions() is None


def test_one_that_was_named_must_be_there_and_of_the_same_sources(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(machine.VARIABLE, str(package / "other.so"))
    with pytest.raises(ImportError):
        machine.functions()
    load(monkeypatch, "of yesterday")
    with pytest.raises(ImportError, match=r"other\.so was made of other sources than those in .*: build it again"):
        machine.functions()


def test_none_is_taken_where_the_variable_says_so(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package / "_machine.abi3.so").touch()
    load(monkeypatch, "of now")
    monkeypatch.setenv(machine.VARIABLE, "no")
    assert machine.functions() is None
