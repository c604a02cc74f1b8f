"""Jars by Ivy: with a Java that answers as Ivy does, so that nothing is fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.ivy import NotFetched, class_path

MODULE = ("org.example", "server", "1.0")


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the only program there is; not written yet."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "java"


def says(java: Path, script: str) -> None:
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)


def test_the_class_path_is_what_ivy_wrote(java: Path, tmp_path: Path) -> None:
    says(java, f'[ "$4 $5 $6" = "{" ".join(MODULE)}" ] && echo /a.jar:/b.jar > {tmp_path}/server.jars')
    assert class_path(*MODULE, tmp_path) == "/a.jar:/b.jar"


def test_without_java_or_a_network_it_says_so(java: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFetched, match="java"):
        class_path(*MODULE, tmp_path)
    says(java, "echo unresolved dependency; exit 1")
    with pytest.raises(NotFetched, match="unresolved dependency"):
        class_path(*MODULE, tmp_path)
