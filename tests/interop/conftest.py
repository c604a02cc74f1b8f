"""`--table`: what other people's programs did with a node (`make interop`); `compared`: how many documents."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.interop import toolchains
from tests.interop.table import Table


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--table", action="store_true", help="run the tests of other people's programs; print a table of them"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("table", False):
        return
    reporter, capture = (config.pluginmanager.get_plugin(name) for name in ("terminalreporter", "capturemanager"))
    assert reporter is not None and capture is not None
    table = Table(reporter, capture)
    others = table.take(items)
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]
    toolchains.say_by(table.say)
    config.pluginmanager.register(table)


@pytest.fixture
def compared(record_property: Callable[[str, object], None]) -> Callable[[int], None]:
    """How to say how many documents were held against each other."""
    return lambda documents: record_property("compared", documents)
