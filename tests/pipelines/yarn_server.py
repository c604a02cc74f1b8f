"""A real YARN from Maven Central: a resource manager and a node manager as processes; without a network no YARN."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen
from xml.sax.saxutils import escape

import pytest

from harness.ivy import NotFetched, class_path
from harness.nodes import until
from harness.processes import end_with_all_its_own
from tests.pipelines.spark_clusters import SPARK_HOME, environment

HADOOP = "3.5.0"
"""The version whose client Spark 4.2 has with it."""
MODULES = (
    ("org.apache.hadoop", "hadoop-client-minicluster", HADOOP),
    ("org.slf4j", "slf4j-reload4j", "1.7.36"),
    ("org.bouncycastle", "bcpkix-jdk18on", "1.82"),
)
"""All of Hadoop's servers in one jar, and what it wants and does not name."""
SERVERS = {"manager": "resourcemanager.ResourceManager", "node": "nodemanager.NodeManager"}
LOGGING = """log4j.rootLogger=INFO, A
log4j.appender.A=org.apache.log4j.ConsoleAppender
log4j.appender.A.layout=org.apache.log4j.PatternLayout
log4j.appender.A.layout.ConversionPattern=%d{ISO8601} %p %c{2}: %m%n
"""
MIB, CORES, ATTEMPTS = 8192, 6, 10


@dataclass(frozen=True, slots=True)
class Yarn:
    """One that runs.

    Args:
        folder: its own; containers' logs are in `logs`, what they work on in `local`.
        web: address of the resource manager's pages.
        node: process of the node manager, from which all containers descend.
    """

    folder: Path
    web: str
    node: int

    @property
    def variables(self) -> dict[str, str]:
        """Those of a machine from which one submits."""
        return {"HADOOP_CONF_DIR": str(self.folder / "hadoop"), "SPARK_CONF_DIR": str(self.folder / "spark")}

    def application(self) -> dict[str, Any]:
        """Return what the resource manager tells of the newest application; empty before there is one."""
        with urlopen(f"http://{self.web}/ws/v1/cluster/apps", timeout=60) as answer:
            found = json.load(answer)["apps"] or {"app": []}
        return max(found["app"], key=lambda app: app["startedTime"], default={})

    def attempts(self) -> int:
        """Return how many drivers the newest application has had."""
        with urlopen(f"http://{self.web}/ws/v1/cluster/apps/{self.application()['id']}/appattempts", timeout=60) as it:
            return len(json.load(it)["appAttempts"]["appAttempt"])

    def kill(self) -> None:
        """End the newest application as an operator does."""
        to = f"http://{self.web}/ws/v1/cluster/apps/{self.application()['id']}/state"
        headers = {"Content-Type": "application/json"}
        with urlopen(Request(to, b'{"state": "KILLED"}', headers, method="PUT"), timeout=60):
            pass

    def told(self, stream: str) -> str:
        """Return what the containers of the newest application printed to `stdout` or `stderr`."""
        logs = (self.folder / "logs" / self.application()["id"]).glob(f"*/{stream}")
        return "\n".join(log.read_text("utf-8", "replace") for log in sorted(logs))


def _ports(count: int) -> list[int]:
    with ExitStack() as stack:
        bound = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in bound]


def _write(path: Path, settings: Mapping[str, object]) -> None:
    text = "".join(
        f"<property><name>{name}</name><value>{escape(str(it))}</value></property>\n" for name, it in settings.items()
    )
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"<configuration>\n{text}</configuration>\n", encoding="utf-8")


def _settings(folder: Path, addresses: list[str]) -> dict[str, object]:
    names = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
    manager = {f"yarn.resourcemanager.{name}": address for name, address in zip(names, addresses, strict=False)}
    names = ("address", "localizer.address", "webapp.address")
    node = {f"yarn.nodemanager.{name}": address for name, address in zip(names, addresses[5:], strict=True)}
    return {
        "yarn.resourcemanager.hostname": "127.0.0.1",
        "yarn.nodemanager.hostname": "127.0.0.1",
        **manager,
        **node,
        "yarn.resourcemanager.am.max-attempts": ATTEMPTS,
        "yarn.nodemanager.local-dirs": folder / "local",
        "yarn.nodemanager.log-dirs": folder / "logs",
        "yarn.nodemanager.resource.memory-mb": MIB,
        "yarn.nodemanager.resource.cpu-vcores": CORES,
        # A container over its memory is ended, as on a real cluster; what it merely reserved is not counted.
        "yarn.nodemanager.pmem-check-enabled": "true",
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.5",
        "yarn.scheduler.minimum-allocation-mb": 256,
    }


def _configure(folder: Path) -> str:
    """Write what servers and those who submit read; return the address of the resource manager's pages."""
    addresses = [f"127.0.0.1:{port}" for port in _ports(8)]
    core: dict[str, object] = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": folder / "tmp"}
    _write(folder / "hadoop/core-site.xml", core)
    _write(folder / "node/core-site.xml", core | {"fs.AbstractFileSystem.file.impl": "Permitting"})
    _write(folder / "hadoop/yarn-site.xml", _settings(folder, addresses))
    queues = {"queues": "default", "default.capacity": 100}
    queue = {f"yarn.scheduler.capacity.root.{name}": text for name, text in queues.items()}
    _write(
        folder / "hadoop/capacity-scheduler.xml", queue | {"yarn.scheduler.capacity.maximum-am-resource-percent": "0.5"}
    )
    (folder / "hadoop/log4j.properties").write_text(LOGGING)
    (folder / "spark").mkdir()
    # Its machines have Spark's jars, which else would be copied for each application.
    jars = f"spark.yarn.jars local:{SPARK_HOME}/jars/*\nspark.yarn.stagingDir file://{folder}/staging\n"
    (folder / "spark/spark-defaults.conf").write_text(jars)
    return addresses[4]


@contextmanager
def yarn(folder: Path) -> Iterator[Yarn]:
    """Run one in a folder, with one node manager."""
    if shutil.which("javac") is None:
        pytest.skip("no YARN here: its node manager wants a class compiled (apt install openjdk-17-jdk-headless)")
    try:
        path = ":".join(class_path(*module, folder) for module in MODULES)
    except NotFetched as problem:
        pytest.skip(f"no YARN here: {problem}")
    web = _configure(folder)
    source = Path(__file__).with_name("Permitting.java")
    subprocess.run(["javac", "-proc:none", "-cp", path, "-d", folder / "node", source], check=True)
    with ExitStack() as stack:
        servers = [_start(stack, name, f"{folder}/{name}:{folder}/hadoop:{path}", folder) for name in SERVERS]
        until(lambda: any(server.poll() for server in servers) or _nodes(web) == 1, "a node manager is registered")
        assert not any(server.poll() for server in servers), (folder / "manager.log").read_text()[-4000:]
        yield Yarn(folder, web, servers[-1].pid)


def _start(stack: ExitStack, name: str, path: str, folder: Path) -> subprocess.Popen[bytes]:
    log = stack.enter_context((folder / f"{name}.log").open("wb"))
    java = [
        "java",
        "-Xmx512m",
        "-cp",
        path,
        f"-Dhadoop.log.dir={folder}",
        "--add-opens=java.base/java.lang=ALL-UNNAMED",
    ]
    process = subprocess.Popen(
        [*java, f"org.apache.hadoop.yarn.server.{SERVERS[name]}"], env=environment(), cwd=folder, stdout=log, stderr=log
    )
    stack.callback(process.wait)
    stack.callback(end_with_all_its_own, process.pid)
    return process


def _nodes(web: str) -> int:
    try:
        with urlopen(f"http://{web}/ws/v1/cluster/metrics", timeout=60) as answer:
            return int(json.load(answer)["clusterMetrics"]["activeNodes"])
    except OSError:
        return 0
