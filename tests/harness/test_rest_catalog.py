"""The REST catalog of tests, as pyiceberg sees it; tests/lake/iceberg/test_catalogs.py tries all that it does."""

from __future__ import annotations

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from harness.rest_catalog import rest_server


def test_a_namespace_may_be_in_another_one() -> None:
    with rest_server() as server:
        catalog = load_catalog("tests", type="rest", uri=server.url)
        catalog.create_namespace_if_not_exists(("lake",))
        catalog.create_namespace_if_not_exists(("lake", "shop"))
        assert server.namespaces == {"lake", "lake.shop"}
        with pytest.raises(NoSuchTableError):
            catalog.load_table(("lake", "shop", "orders"))
