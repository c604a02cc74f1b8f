"""The README's Python is run as it stands, against a node; only the address is that of the node."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from headwater import testing
from headwater.testing.node import Node
from headwater.wire.vbucket import VBUCKETS_NEW, vbucket_of
from tests.spark.conftest import lent_spark, spark

__all__ = ["lent_spark", "spark"]

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
LIGHT = [block for block in BLOCKS if "pyspark" not in block]
HEAVY = [block for block in BLOCKS if "pyspark" in block]


def shown_to(block: str, node: Node) -> str:
    return block.replace("couchbase://127.0.0.1:11210/default", node.url)


def run(block: str) -> str:
    with testing.node(vbuckets=16) as node:
        code = shown_to(block, node)
        begin = "import os, sys; os.environ['PYSPARK_PYTHON'] = sys.executable\n"
        done = subprocess.run(
            [sys.executable, "-c", begin + code], capture_output=True, text=True, timeout=540, check=False
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("block", LIGHT, ids=lambda block: block.splitlines()[0])
def test_a_block_of_the_readme_runs(block: str) -> None:
    run(block)


@pytest.mark.spark
@pytest.mark.usefixtures("lent_spark")
def test_the_spark_block_of_the_readme_shows_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = HEAVY
    with testing.node(vbuckets=16) as node, node.client() as documents:
        documents.set_many((f"k{number}", "v") for number in range(7))
        exec(compile(shown_to(block, node), "README.md", "exec"), {"__name__": "readme"})
    assert "|mutation|    7|" in capsys.readouterr().out


@pytest.mark.spark
@pytest.mark.battery
def test_the_spark_block_of_the_readme_makes_a_spark_of_its_own() -> None:
    assert [("|" in run(block)) for block in HEAVY] == [True]


def test_the_vbucket_that_the_readme_shows_is_that_of_the_key() -> None:
    shown = re.search(r"^(\d+):1 mutation greeting ", README, re.MULTILINE)
    assert shown is not None and int(shown[1]) == vbucket_of(b"greeting", VBUCKETS_NEW)
