"""Python of the guides: run as it stands against a node; where it wants what is not here, its calls are checked."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from headwater import client, testing
from tests.guides.blocks import ROOT, Block, Bound, Ran, blocks, pages
from tests.guides.declared import way

BOUND = [block for page in pages() for block in blocks(page) if isinstance(way(block), Bound)]
PRINTED = "couchbase://127.0.0.1:11210/default"


def ran(page: str) -> list[Block]:
    return [block for block in blocks(page) if isinstance(way(block), Ran)]


def run(block: Block, names: dict[str, Any], instead: dict[str, str]) -> None:
    """Run a block among these names, as a program or, where it awaits, as the body of a coroutine."""
    text = block.text
    for printed, ours in instead.items():
        text = text.replace(printed, ours)
    code = compile("\n" * block.line + text, str(ROOT / block.page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, names))
    else:
        exec(code, names)


def test_every_page_that_is_run_has_a_test() -> None:
    here = {"docs/howto/durable-writes.md", "docs/howto/move.md", "docs/howto/read-changes.md", "docs/howto/spark.md"}
    assert {page for page in pages() if ran(page)} == here


class Ending:
    """A client whose streams end at now: the guide's go on for ever."""

    def __init__(self, bucket: client.Client) -> None:
        self._bucket = bucket
        self.opened: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bucket, name)

    def changes(self, *start: Any, **options: Any) -> Any:
        self.opened.append(self._bucket.changes(*start, **{"until": "now", **options}))
        return self.opened[-1]


def create_collections(node: testing.Node) -> None:
    for name in ("shop.orders", "shop.carts"):
        words = [sys.executable, "-m", "headwater", "collection", "create", name, "--node", node.url]
        subprocess.run(words, check=True, capture_output=True, timeout=240)


@pytest.fixture(scope="module")
def bucket() -> Iterator[tuple[testing.Node, client.Client]]:
    with testing.node(vbuckets=4) as node, node.client() as connected:
        create_collections(node)
        yield node, connected


def test_the_guide_that_reads_changes(
    bucket: tuple[testing.Node, client.Client], capsys: pytest.CaptureFixture[str]
) -> None:
    node, connected = bucket
    first, *others = ran("docs/howto/read-changes.md")
    run(first, {}, {PRINTED: node.url})
    assert "stored b'greeting' b'hello'" in capsys.readouterr().out
    with connected.changes(until="now") as changes:
        list(changes)
        ending = Ending(connected)
        names = {"client": client, "bucket": ending, "changes": changes, "saved_positions": changes.positions}
        for block in others:
            run(block, {**names}, {PRINTED: node.url})
        for feed in ending.opened:
            feed.close()
    assert "new: shop orders" in capsys.readouterr().out


def test_the_guide_that_writes_durably(bucket: tuple[testing.Node, client.Client]) -> None:
    node, connected = bucket
    for block in ran("docs/howto/durable-writes.md"):
        run(block, {}, {PRINTED: node.url})
    assert connected.get("stock").text == "9" and connected.get("order:2").text == "paid"
    assert not connected.exists("order:1")


def test_the_mover_of_the_guide_moves_every_vbucket(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = ran("docs/howto/move.md")
    with testing.node(vbuckets=8) as a, testing.node(vbuckets=8, vbucket_state="none") as b:
        with a.client() as documents:
            documents.set_many((f"k{number}", "v") for number in range(100))
        ports = f'for host, port in (("127.0.0.1", {a.port}), ("127.0.0.1", {b.port}))'
        instead = {
            'for host in ("10.0.0.1", "10.0.0.2")': ports,
            "Address(host, 11210)": "Address(host, port)",
            "range(512)": "range(8)",
        }
        assert all(printed in block.text for printed in instead)
        run(block, {"__name__": "guide"}, instead)
        with b.client() as documents:
            assert len(documents.get_many(f"k{number}" for number in range(100))) == 100
    assert len(capsys.readouterr().out.splitlines()) == 8


SPARK = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
url, folder = {url!r}, {folder!r}
def write(frame, number): frame.count()
"""


@pytest.mark.spark
@pytest.mark.battery  # a Spark of its own, and minutes on a busy machine
def test_the_blocks_of_sparks_guide_run_one_after_the_other(tmp_path: Path) -> None:
    register, choose, collections, stream, listen, save = ran("docs/howto/spark.md")
    with testing.node(vbuckets=4) as node, testing.node(vbuckets=4) as other:
        create_collections(node)
        with node.client() as documents:
            documents.set_many((f"k{number}", "v") for number in range(100))
        begin = SPARK.format(url=node.url, folder=str(tmp_path))
        instead = {"/data/checkpoint": "CHECKPOINT", 'processingTime="1 second"': "availableNow=True"}
        texts = [block.text.replace(PRINTED, node.url) for block in (register, choose, collections, listen, stream)]
        for printed, ours in instead.items():
            assert any(printed in text for text in texts)
            texts = [text.replace(printed, ours) for text in texts]
        program = begin + "\n".join(texts).replace('"CHECKPOINT"', "folder")
        program += "\nquery.awaitTermination()\nframe = now.selectExpr('key', 'value')\n"
        program += save.text.replace(PRINTED, other.url) + "\nspark.stop()\n"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=dict(os.environ),
            capture_output=True,
            text=True,
            timeout=540,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        with other.client() as documents:
            assert len(documents.get_many(f"k{number}" for number in range(100))) == 100


def found(path: str) -> tuple[Any, str, Any]:
    """Return a module, the name in it, and what that is."""
    module, _, name = path.rpartition(".")
    return import_module(module), name, getattr(import_module(module), name)


@pytest.mark.parametrize("block", BOUND, ids=str)
def test_the_calls_of_a_block_fit_what_they_call(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word that a function does not know is a TypeError here as it would be there."""
    told = way(block)
    assert isinstance(told, Bound)
    calls = {}
    for path in told.calls:
        module, name, real = found(path)
        calls[path] = MagicMock(side_effect=partial(_called, inspect.signature(real), real))
        monkeypatch.setattr(module, name, calls[path])
    run(block, {"spark": MagicMock(), "input": lambda text: ""}, {})
    assert [path for path, call in calls.items() if not call.called] == []


def _called(signature: inspect.Signature, real: Any, *args: Any, **kwargs: Any) -> Any:
    bound = signature.bind(*args, **kwargs)
    # `**unknown: Never` is there to say more than Python would of a word that nobody knows.
    assert not bound.arguments.get("unknown"), bound.arguments["unknown"]
    answer = MagicMock(name=getattr(real, "__name__", ""))
    answer.__enter__.return_value = answer
    answer.__iter__.return_value = iter(())
    answer.stats.return_value = {}
    return answer
