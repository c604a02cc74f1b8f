"""The catalog of scenarios, found by pyiceberg's own settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from harness.lake_faults.catalog import REST, RestCatalog, configured, rest_catalog


def test_a_mirror_finds_the_catalog_by_its_name_while_it_runs(tmp_path: Path) -> None:
    with rest_catalog() as catalog:
        assert RestCatalog.named(tmp_path / "table") == "faults:shop.table"
        assert os.environ[REST] == catalog.server.url
        with pytest.raises(NoSuchTableError):
            load_catalog("faults").load_table(("shop", "table"))
        with pytest.raises(NoSuchTableError):
            catalog.load(tmp_path / "table")
    assert REST not in os.environ


def test_no_address_is_no_catalog() -> None:
    with configured(""):
        assert REST not in os.environ
