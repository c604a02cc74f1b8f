"""Spark on a cluster: executors in processes of their own, which get the package as the guide says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.nodes import until
from harness.processes import descendants, end_with_all_its_own
from headwater.testing.node import Node, node
from tests.pipelines.spark_clusters import SPARK_HOME, bare, environment, installed, standalone, submitted
from tests.pipelines.support import documents, table
from tests.pipelines.yarn_server import Yarn, yarn

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
    (block,) = (block for block in (*blocks("bash"), *blocks("sh")) if block.startswith(beginning))
    return block.replace("\\\n", " ").splitlines()


def as_typed(beginning: str, instead: Mapping[str, str]) -> str:
    """A block of the guide with our places instead of its own."""
    text = "\n".join(commands(beginning))
    for guides, ours in instead.items():
        assert guides in text
        text = text.replace(guides, ours)
    return text


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
    assert {folder.parent for folder in folders} == {SPARK_HOME / "work"}
    for folder in folders:  # what Spark keeps of an application there is of no use to anybody
        shutil.rmtree(folder)


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


@pytest.fixture(scope="module")
def program(folder: Path) -> Path:
    """The folder with the guide's program in it."""
    (text,) = (block for block in blocks("python") if "from headwater.pipelines.mirror" in block)
    (folder / "mirror_orders.py").write_text(text)
    return folder


def places(bucket: Node, place: Path) -> dict[str, str]:
    return {"couchbase://10.0.0.7,10.0.0.8/orders": bucket.url, "/mnt/lake/orders": str(place)}


# As pip's Spark has it: its programs beside the Python that has it, and no SPARK_HOME.
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def shell(**more: str) -> dict[str, str]:
    """The variables of somebody who types."""
    found = environment(PATH=PATH, **more)
    del found["SPARK_HOME"]
    return found


HOME = "".join(f"{line}\n" for line in commands("export SPARK_HOME"))


def test_the_guides_program_is_submitted_as_the_guide_says(
    buckets: tuple[Node, Node], program: Path, tmp_path: Path
) -> None:
    source, _ = buckets
    place = tmp_path / "orders"
    with standalone(tmp_path) as master:
        asked = HOME + as_typed(
            "export PYSPARK_DRIVER_PYTHON", {"spark://master:7077": master, **places(source, place)}
        )
        ended = subprocess.run(
            ["bash", "-c", asked], cwd=program, env=shell(), capture_output=True, text=True, check=False
        )
    assert ended.returncode == 0, ended.stderr[-6000:]
    assert f"the table covers {COUNT} changes" in ended.stdout
    assert table(place) == documents(source)


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with yarn(tmp_path_factory.mktemp("yarn")) as found:
        yield found


def test_executors_on_yarn_get_the_package_by_the_archive(
    buckets: tuple[Node, Node], folder: Path, tmp_path: Path, hadoop: Yarn
) -> None:
    source, target = buckets
    asked = ["--master", "yarn", "--driver-memory", "512m", *given()]
    asked = [text.replace("socket.enabled=true", "socket.enabled=false") for text in asked]  # as the guide says
    asked += [PROGRAM, source.url, target.url, tmp_path / "t"]
    printed = submitted(asked, python="./environment/bin/python", folder=folder, **hadoop.variables)
    told = json.loads(printed.splitlines()[-1])
    is_right(told, buckets, tmp_path / "t")
    for prefix, work, package in told["where"]:
        assert work.startswith(f"{hadoop.folder}/local/") and package.startswith(work)
        assert Path(prefix) == Path(work, "environment")


@contextmanager
def submitting(asked: str, folder: Path, hadoop: Yarn) -> Iterator[subprocess.Popen[bytes]]:
    """A shell in which this is typed, with a YARN for it; an application that still runs at the end is ended."""
    with (hadoop.folder / "submit.log").open("wb") as log:
        variables = shell(**hadoop.variables)
        before = hadoop.application().get("id")
        process = subprocess.Popen(["bash", "-c", asked], cwd=folder, env=variables, stdout=log, stderr=log)
        try:
            # Until YARN knows it, the newest application is that of the test before, which has finished.
            until(lambda: hadoop.application().get("id") != before, "YARN knows the application", seconds=600)
            yield process
        finally:
            hadoop.kill()
            process.wait(600)


def test_yarn_runs_the_guides_driver_and_starts_it_again_when_it_dies(
    buckets: tuple[Node, Node], program: Path, tmp_path: Path, hadoop: Yarn
) -> None:
    source, _ = buckets
    place = tmp_path / "orders"
    with submitting(as_typed("spark-submit --master yarn", places(source, place)), program, hadoop):
        wait_for(source, place, hadoop)
        os.kill(driver(hadoop), signal.SIGKILL)
        with source.client() as client:
            client.set_many((f"later{i}", b"v") for i in range(100))
        wait_for(source, place, hadoop)
        assert hadoop.attempts() == 2
    assert hadoop.application()["state"] == "KILLED"


def wait_for(bucket: Node, place: Path, hadoop: Yarn) -> None:
    """Until the table is what the bucket is."""
    expected = documents(bucket)

    def is_level() -> bool:
        assert hadoop.application().get("state") not in ("FAILED", "FINISHED"), hadoop.told("stderr")[-6000:]
        return (place / "_delta_log" / f"{0:020}.json").exists() and table(place) == expected

    until(is_level, "the table equals the node", seconds=600)


def driver(hadoop: Yarn) -> int:
    """The process of the application's driver."""
    for descendant in descendants(hadoop.node):
        line = Path(f"/proc/{descendant}/cmdline").read_bytes().split(b"\0")
        if line[0].endswith(b"java") and b"org.apache.spark.deploy.yarn.ApplicationMaster" in line:
            return descendant
    raise AssertionError("no driver runs")


def test_a_client_of_connect_reads_writes_and_streams_by_the_servers_package(
    buckets: tuple[Node, Node], folder: Path, tmp_path: Path
) -> None:
    """The server is begun as the guide says, on a cluster whose workers have nothing of ours."""
    pytest.importorskip("grpc", reason="no client of Spark Connect here: pip install 'pyspark[connect]'")
    source, _ = buckets
    with node(vbuckets=16) as target, standalone(tmp_path) as master, connect(master, folder, tmp_path) as server:
        asked = [sys.executable, Path(__file__).with_name("connect_program.py"), server, source.url, target.url]
        ended = subprocess.run([*asked, tmp_path / "c"], capture_output=True, text=True, timeout=600, check=False)
        assert ended.returncode == 0, ended.stderr[-4000:]
        assert documents(target) == documents(source)
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["read"] == told["registered"] == len(documents(source))
    assert 0 < told["written"] < told["read"]
    assert json.loads(told["offset"])["vb"].keys() == {str(vbucket) for vbucket in range(16)}


@contextmanager
def connect(master: str, folder: Path, logs: Path) -> Iterator[str]:
    """A server of Spark Connect, which comes and ends with this; yields the url for clients."""
    (logs / "conf").mkdir()
    told = f"spark.master {master}\nspark.driver.memory 512m\n"
    address = "spark.connect.grpc.binding.address 127.0.0.1\nspark.connect.grpc.binding.port 0\n"
    (logs / "conf/spark-defaults.conf").write_text(told + address)
    asked = HOME + as_typed("PYSPARK_PYTHON=", {"/opt": str(folder), "sbin/start-connect-server.sh": CONNECT})
    variables = shell(SPARK_CONF_DIR=str(logs / "conf"))
    log = logs / "connect.log"
    with log.open("wb") as out:
        server = subprocess.Popen(["bash", "-c", asked], cwd=folder, env=variables, stdout=out, stderr=out)
    try:
        until(
            lambda: "Spark Connect server started at" in log.read_text() or server.poll() is not None,
            "it listens",
            seconds=600,
        )
        found = re.search(r"Spark Connect server started at: 127\.0\.0\.1:(\d+)", log.read_text())
        assert found is not None, log.read_text()[-4000:]
        yield f"sc://127.0.0.1:{found[1]}"
    finally:
        end_with_all_its_own(server.pid)
        server.wait()


# What the script of Spark's own distribution does but for going into the background; pip's has not the script.
CONNECT = "spark-submit --class org.apache.spark.sql.connect.service.SparkConnectServer"
