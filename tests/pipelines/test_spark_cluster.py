"""Spark on a cluster: executors in processes of their own, which get the package as the guide says."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.testing.node import Node, node
from tests.pipelines.spark_clusters import SPARK_HOME, bare, environment, installed, standalone, submitted
from tests.pipelines.support import documents, table

pytestmark = [pytest.mark.spark, pytest.mark.battery, pytest.mark.timeout(1500)]

PROGRAM = Path(__file__).parent / "cluster_program.py"
GUIDE = Path(__file__).parents[2] / "docs/howto/spark-cluster.md"
COUNT = 2_000


@pytest.fixture(scope="module")
def buckets() -> Iterator[tuple[Node, Node]]:
    """A bucket with documents, and an empty one."""
    with node(vbuckets=16) as full, node(vbuckets=16) as empty:
        with full.client() as client:
            assert client.set_many((f"k{i}", b"v%d" % i) for i in range(COUNT)) == {}
        yield full, empty


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to submit from, with the environment that the guide makes."""
    made = tmp_path_factory.mktemp("submit")
    for command in commands("python3 -m venv"):
        if "pip install" in command:
            installed(made / "environment", "headwater[lake]", "pandas")
        else:
            asked = command.replace("python3 -m venv", f"{sys.executable} -m venv --without-pip")
            subprocess.run(["bash", "-c", asked], cwd=made, env=environment(), check=True, capture_output=True)
    return made


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def commands(beginning: str) -> list[str]:
    """The commands of the block of the guide that begins so."""
    (block,) = (block for block in blocks("bash") if block.startswith(beginning))
    return block.replace("\\\n", " ").splitlines()


def is_right(told: dict[str, Any], buckets: tuple[Node, Node], place: Path) -> None:
    source, target = buckets
    assert (told["read"], told["mirrored"], told["slots"]) == (COUNT, COUNT, 2)
    assert documents(target) == documents(source) == table(place)


def test_two_executors_on_one_machine_read_write_and_mirror(buckets: tuple[Node, Node], tmp_path: Path) -> None:
    source, target = buckets
    asked = ["--master", "local-cluster[2,1,1024]", "--driver-memory", "512m", PROGRAM]
    printed = submitted([*asked, source.url, target.url, tmp_path / "t"], python=sys.executable, folder=tmp_path)
    told = json.loads(printed.splitlines()[-1])
    is_right(told, buckets, tmp_path / "t")
    folders = {Path(work).parent for _, work, _ in told["where"]}
    assert {each.parent for each in folders} == {SPARK_HOME / "work"}
    for each in folders:  # what Spark keeps of an application there is of no use to anybody
        shutil.rmtree(each)


def test_workers_whose_python_has_nothing_of_ours_get_it_by_the_archive(
    buckets: tuple[Node, Node], folder: Path, tmp_path: Path
) -> None:
    source, target = buckets
    python = "./environment/bin/python"
    with standalone(tmp_path) as master:
        asked = ["--master", master, "--driver-memory", "512m", *given()]
        printed = submitted([*asked, PROGRAM, source.url, target.url, tmp_path / "t"], python=python, folder=folder)
    told = json.loads(printed.splitlines()[-1])
    is_right(told, buckets, tmp_path / "t")
    assert len(told["where"]) == 2
    for prefix, work, package in told["where"]:
        assert work.startswith(f"{tmp_path}/worker") and package.startswith(work)
        assert Path(prefix).resolve() == Path(work, "environment").resolve()
        assert kernels(Path(work)) == kernels(folder), "a kernel was compiled on the way"


def kernels(folder: Path) -> set[str]:
    return {each.name for each in (folder / "environment/cache").rglob("*")}


def given() -> list[str]:
    """The options of the guide's spark-submit but for its master."""
    submit = shlex.split(commands("export PYSPARK_DRIVER_PYTHON")[-1])
    assert submit[:2] == ["spark-submit", "--master"]
    return submit[3 : submit.index("mirror_orders.py")]


def test_a_worker_without_the_package_fails_with_its_name(buckets: tuple[Node, Node], tmp_path: Path) -> None:
    """So that the test above shows something."""
    python = bare(tmp_path / "bare") / "bin/python"
    asked = [python, "-c", "import headwater"]
    told = subprocess.run(asked, env=environment(), capture_output=True, check=False).stderr
    assert b"No module named 'headwater'" in told


def test_the_guides_program_is_submitted_as_the_guide_says(
    buckets: tuple[Node, Node], folder: Path, tmp_path: Path
) -> None:
    source, _ = buckets
    (program,) = (block for block in blocks("python") if "from headwater.pipelines.mirror" in block)
    (folder / "mirror_orders.py").write_text(program)
    place = tmp_path / "orders"
    with standalone(tmp_path) as master:
        asked = "\n".join(commands("export PYSPARK_DRIVER_PYTHON"))
        for guides, ours in (
            ("spark://master:7077", master),
            ("couchbase://10.0.0.7,10.0.0.8/orders", source.url),
            ("/mnt/lake/orders", str(place)),
        ):
            assert guides in asked
            asked = asked.replace(guides, ours)
        path = f"{SPARK_HOME}/bin:{environment()['PATH']}"
        ended = subprocess.run(
            ["bash", "-c", asked], cwd=folder, env=environment(PATH=path), capture_output=True, text=True, check=False
        )
    assert ended.returncode == 0, ended.stderr[-6000:]
    assert f"the table covers {COUNT} changes" in ended.stdout
    assert table(place) == documents(source)
