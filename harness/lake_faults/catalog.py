"""A REST catalog that follows the tables of scenarios, and that may be away, or lose its answers.

It is a small server with pyiceberg's own code for requirements and updates (`harness/rest_catalog.py`), reached through
pyiceberg's settings, as users give them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REST = "PYICEBERG_CATALOG__FAULTS__URI"
NAME, NAMESPACE = "faults", "shop"


class RestCatalog:
    """The catalog of a scenario.

    Args:
        server: see `rest_server`.
    """

    def __init__(self, server: Any) -> None:
        self.server = server

    @staticmethod
    def named(place: Path) -> str:
        """Return what `--catalog` is given for a table."""
        return f"{NAME}:{NAMESPACE}.{place.name}"

    def load(self, place: Path) -> Any:
        """Return a table as the catalog has it."""
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415 -- a second to import

        return load_catalog(NAME, type="rest", uri=self.server.url).load_table((NAMESPACE, place.name))


@contextmanager
def configured(url: str) -> Iterator[None]:
    """Let mirrors of this process, and of those that it begins in the block, find the catalog at an address.

    pyiceberg reads the environment once, when it is imported; it may be by now.
    """
    if not url:
        yield
        return
    from pyiceberg import catalog  # noqa: PLC0415
    from pyiceberg.utils.config import Config  # noqa: PLC0415

    os.environ[REST] = url
    catalog._ENV_CONFIG = Config()
    try:
        yield
    finally:
        del os.environ[REST]
        catalog._ENV_CONFIG = Config()


@contextmanager
def rest_catalog() -> Iterator[RestCatalog]:
    """Run a catalog for a block."""
    from harness.rest_catalog import rest_server  # noqa: PLC0415

    with rest_server() as server, configured(server.url):
        yield RestCatalog(server)
