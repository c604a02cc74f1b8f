"""Readers, and where they are installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.readers.environments import ENVIRONMENTS, OURS, READERS, Reader, python_of, versions_of
from harness.readers.reading import READERS as PROGRAMS


def test_each_reader_has_a_program_and_an_environment() -> None:
    assert {reader.program for reader in READERS} == set(PROGRAMS)
    assert {reader.environment for reader in READERS} == {OURS, *ENVIRONMENTS}
    assert len({(reader.name, reader.form) for reader in READERS}) == len(READERS)


def test_a_reader_is_where_its_first_package_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_READERS", str(tmp_path))
    assert python_of(Reader("a", "a", "delta", ("polars",))) == sys.executable
    assert python_of(Reader("a", "a", "delta", ("no_such_package",))) is None
    assert python_of(Reader("a", "a", "delta", ("chdb",), "chdb")) is None


def test_versions_are_those_of_all_its_packages_and_of_its_jars() -> None:
    told = versions_of(Reader("a", "a", "delta", ("polars", "deltalake"), more="a-jar 1.0"), sys.executable)
    assert told.startswith("polars ") and ", deltalake " in told and told.endswith(", a-jar 1.0")
