"""Debezium's JDBC sink in Kafka Connect: its table equals the bucket, after a failover too."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from harness.ivy import NotFetched
from harness.kafka import open_broker
from harness.nodes import diverge
from headwater.testing.node import Node, node
from tests.interop.toolchains import JAVA, Tool, java_program, needs, pinned
from tests.pipelines.publications import Topic, go
from tests.pipelines.support import documents

pytest.importorskip("confluent_kafka", reason="the library confluent-kafka is not installed")
POSTGRES = Tool("PostgreSQL", ("initdb", "postgres", "psql"), "apt-get install postgresql, with its bin folder in PATH")
HERE = Path(__file__).parent
VERSION = pinned(HERE, "debezium-connector-jdbc")
PATIENCE_SECONDS = 180.0
pytestmark = [pytest.mark.interop, needs(JAVA)]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


@contextmanager
def postgres() -> Iterator[int]:
    """Run a PostgreSQL of its own, whose data is thrown away; yield its port. It does not run as root."""
    user = "postgres" if os.getuid() == 0 else None
    # A user of its own does not get into root's folder for tests.
    place = Path(tempfile.mkdtemp(prefix="headwater-postgres-", dir="/var/tmp" if user else None))
    if user:
        shutil.chown(place, user)
    port, data = _free_port(), str(place / "data")
    made = ["initdb", "-D", data, "-U", "postgres", "--auth=trust", "--no-sync", "--encoding=UTF8"]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL, user=user, cwd="/")
    line = ["postgres", "-D", data, "-p", str(port), "-k", "", "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
    running = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=user, cwd="/")
    try:
        yield port
    finally:
        running.terminate()
        running.wait(60)
        shutil.rmtree(place, ignore_errors=True)


def table(port: int) -> dict[bytes, bytes] | None:
    """The rows of the table, by their keys; None before the sink has made it."""
    query = "select encode(key, 'hex'), encode(convert_to(document::text, 'UTF8'), 'hex') from documents"
    line = ["psql", "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-At", "-F", " ", "-c", query]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    return {bytes.fromhex(key): bytes.fromhex(value) for key, value in map(str.split, done.stdout.splitlines())}


def _problems(place: str) -> str:
    """Return the failures of the sink's tasks as the worker tells them."""
    with urlopen(place, timeout=10.0) as answer:
        traces = [task.get("trace", "") for task in json.load(answer)["tasks"]]
    return "".join(line for trace in traces for line in trace.splitlines(keepends=True) if "... " not in line)


@contextmanager
def sink(topic: Topic, port: int, place: Path) -> Iterator[Callable[[], str]]:
    """Run Kafka Connect with the sink; yield a function that returns what it says of itself."""
    listener = f"http://127.0.0.1:{_free_port()}"
    worker = {
        "bootstrap.servers": topic.broker.address,
        "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true",
        "offset.storage.file.filename": str(place / "offsets"),
        "consumer.isolation.level": "read_committed",
        "listeners": listener,
    }
    connector = {
        "name": "documents",
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "topics": topic.name,
        "connection.url": f"jdbc:postgresql://127.0.0.1:{port}/postgres",
        "connection.username": "postgres",
        "connection.password": "none",
        "insert.mode": "upsert",
        "delete.enabled": "true",
        "primary.key.mode": "record_key",
        "primary.key.fields": "key",
        # The sink wants a key with a schema of fields.
        "transforms": "key",
        "transforms.key.type": "org.apache.kafka.connect.transforms.HoistField$Key",
        "transforms.key.field": "key",
        "schema.evolution": "basic",
        "collection.name.format": "documents",
    }
    for name, properties in (("worker", worker), ("sink", connector)):
        text = "".join(f"{key}={value}\n" for key, value in properties.items())
        (place / f"{name}.properties").write_text(text, encoding="utf-8")
    program = "org.apache.kafka.connect.cli.ConnectStandalone"
    line = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", java_program(HERE), program]
    line += [str(place / "worker.properties"), str(place / "sink.properties")]
    with (place / "connect.log").open("wb") as written:
        running = subprocess.Popen(line, stdout=written, stderr=subprocess.STDOUT, cwd=place)
    try:
        yield lambda: _problems(f"{listener}/connectors/documents/status")
    finally:
        running.terminate()
        running.wait(60)


@needs(POSTGRES)
@pytest.mark.battery
@pytest.mark.program("Debezium's JDBC sink", VERSION, "keeps a table of PostgreSQL equal to a bucket, over a rollback")
def test_debeziums_jdbc_sink_keeps_a_table_equal_to_the_bucket(tmp_path: Path, compared: Callable[[int], None]) -> None:
    with ExitStack() as stack:
        try:
            broker = stack.enter_context(open_broker(tmp_path, memory="256m", quick=True))
        except NotFetched as reason:
            pytest.skip(f"no Kafka: {reason}")
        topic, port = Topic(broker, "connect"), stack.enter_context(postgres())
        topic.make()
        log = stack.enter_context(sink(topic, port, tmp_path))
        compared(story(stack.enter_context(node(vbuckets=4)), topic, port, log))


def story(bucket: Node, topic: Topic, port: int, log: Callable[[], str]) -> int:
    """Load, overwrite and delete, and take that back; return how many documents were compared."""
    compared = 0

    def agree() -> None:
        nonlocal compared
        go(bucket, topic)
        wanted = {key: json.loads(value) for key, value in documents(bucket).items()}
        until = time.monotonic() + PATIENCE_SECONDS
        while (there := table(port)) is None or {key: json.loads(text) for key, text in there.items()} != wanted:
            assert time.monotonic() < until, log()
            time.sleep(0.5)
        compared += len(wanted)

    def changed() -> None:
        with bucket.client() as client:
            assert client.set_many((f"a{i}", json.dumps({"n": i, "lost": True})) for i in range(0, 500, 2)) == {}
            client.delete_many([f"a{i}" for i in range(1, 500, 4)])
            assert client.set_many((f"b{i}", json.dumps({"new": i})) for i in range(200)) == {}
        agree()

    with bucket.client() as client:
        assert client.set_many((f"a{i}", json.dumps({"n": i, "text": "grün"})) for i in range(1000)) == {}
        client.set(b"\xff", '"a key that is no text"')
    agree()
    diverge(bucket, lost=changed)
    agree()
    changed()
    return compared
