"""A Kafka broker as a process, for tests and benchmarks, and a reader of committed messages.

The broker's jars come from Maven Central by Ivy (harness/ivy.py); it runs alone, as its own controller (KRaft), on
127.0.0.1.
"""

from __future__ import annotations

import base64
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.ivy import class_path

__all__ = ["Broker", "broker", "committed", "open_broker"]

KAFKA = "3.9.2"
"""The version that Spark's source is made for."""
PATIENCE_SECONDS = 120.0
_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
log.dirs={place}/data
num.partitions={partitions}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.min.isr=1
"""


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        bound = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in bound]


@dataclass
class Broker:
    """A broker that can be killed and started again.

    Attributes:
        place: the folder of its data.
        port: its port on 127.0.0.1.
    """

    place: Path
    port: int
    _java: list[str] = field(repr=False)
    _running: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Its host and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its process, while it runs."""
        if self._running is None:
            raise AssertionError("the broker does not run")
        return self._running.pid

    def start(self) -> None:
        """Start it, and wait until its port answers."""
        command = [*self._java, "kafka.Kafka", str(self.place / "server.properties")]
        with (self.place / "broker.log").open("ab") as log:
            self._running = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
                return
            except OSError:
                time.sleep(0.1)
        raise AssertionError(f"no broker came up: {self.place / 'broker.log'}")

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._end("kill")

    def stop(self) -> None:
        """End it as a service manager does."""
        self._end("terminate")

    def _end(self, how: str) -> None:
        running, self._running = self._running, None
        if running is not None:
            getattr(running, how)()
            running.wait()


@contextmanager
def open_broker(
    place: Path,
    *,
    partitions: int = 2,
    memory: str = "512m",
    quick: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Broker]:
    """Run a broker with a folder for its data while the block runs.

    Args:
        settings: of the broker, beside those that it needs to run alone.

    Raises:
        NotFetched: no Java, or no jars.
    """
    port, controller = _free_ports(2)
    # The first compiler alone: a broker for a test then starts in half the time.
    java = ["java", f"-Xmx{memory}", "-XX:TieredStopAtLevel=1" if quick else "-XX:+UseG1GC"]
    java += ["-cp", class_path("org.apache.kafka", "kafka_2.13", KAFKA, place)]
    file = place / "server.properties"
    text = _SETTINGS.format(place=place, port=port, controller=controller, partitions=partitions)
    text += "".join(f"{name}={value}\n" for name, value in (settings or {}).items())
    file.write_text(text, encoding="utf-8")
    name = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    format_ = [*java, "kafka.tools.StorageTool", "format", f"--cluster-id={name}", "--config", str(file)]
    subprocess.run(format_, check=True, stdout=subprocess.DEVNULL)
    opened = Broker(place, port, java)
    opened.start()
    try:
        yield opened
    finally:
        opened.stop()


@contextmanager
def broker(place: Path) -> Iterator[str]:
    """Run a broker while the block runs; yield its address."""
    with open_broker(place) as opened:
        yield opened.address


def committed(address: str, topic: str) -> list[Any]:
    """Return all messages of a topic that a reader of committed messages sees, partition by partition."""
    from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415 - of an extra

    settings: Mapping[str, Any] = {
        "bootstrap.servers": address,
        "group.id": "harness",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }
    reader = Consumer(dict(settings))
    try:
        known = reader.list_topics(timeout=30).topics
        left = set(known[topic].partitions) if topic in known else set()
        reader.assign([TopicPartition(topic, number, 0) for number in left])
        results: list[Any] = []
        until = time.monotonic() + PATIENCE_SECONDS
        while left and time.monotonic() < until:
            for message in reader.consume(1000, 0.2):
                if message.error() is None:
                    results.append(message)
                else:
                    left.discard(message.partition())
        if left:
            raise AssertionError(f"partitions {left} of {topic} have no end")
        return sorted(results, key=lambda message: (message.partition(), message.offset()))
    finally:
        reader.close()
