"""The fixtures of pytest are there wherever headwater is installed, and are what their page says."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from headwater.pytest_plugin import __doc__ as fixtures

PAGE = (Path(__file__).parent.parent / "docs" / "howto" / "testing.md").read_text("utf-8")
FIRST = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]

pytest_plugins = "pytester"


def test_the_fixtures_of_the_guide_are_those_there_are() -> None:
    assert fixtures is not None
    rows = [line for line in PAGE.splitlines() if line.startswith("| `headwater_")]
    assert rows == [line for line in fixtures.splitlines() if line.startswith("| `headwater_")]


STORY = (
    FIRST
    + """

def test_another_test_has_another_node(headwater_node):
    with headwater_node.client() as bucket:
        assert bucket.get_many(["cart:1"]) == {}

def test_a_module_shares_one(headwater_module_node):
    with headwater_module_node.client() as bucket:
        bucket.set("shared", "1")

def test_and_finds_what_was_written(headwater_module_node, headwater_session_node):
    with headwater_module_node.client() as bucket:
        assert bucket.get("shared").value == b"1"
    assert headwater_session_node.port != headwater_module_node.port

def test_nodes_with_options(headwater_new_node):
    first, second = headwater_new_node(vbuckets=1), headwater_new_node(vbuckets=2)
    assert first.options["vbuckets"] == 1 and second.is_running

def test_a_cluster_fails_over(headwater_cluster):
    with headwater_cluster.client() as bucket:
        bucket.set_many((f"k{n}", "v") for n in range(100))
        headwater_cluster.nodes[0].kill()
        assert headwater_cluster.fail_over(headwater_cluster.nodes[0]) > 0
        bucket.set_many((f"k{n}", "w") for n in range(100))
"""
)


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "two workers"])
def test_the_fixtures_are_there_without_a_word(pytester: pytest.Pytester, workers: list[str]) -> None:
    pytester.makepyfile(STORY)
    result = pytester.runpytest_subprocess(*workers)
    result.assert_outcomes(passed=6)


def test_they_come_by_an_entry_point() -> None:
    assert [point.value for point in entry_points(group="pytest11") if point.name == "headwater"] == [
        "headwater.pytest_plugin"
    ]


def test_whoever_does_not_use_them_does_not_load_the_node(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import sys\ndef test_nothing(): assert not {'numba', 'headwater.testing'} & set(sys.modules)")
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
