"""Topics of a real broker, the publications that fill them, and the buckets behind those."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

from harness.kafka import Broker, committed
from headwater.pipelines.formats import FORMATS
from headwater.pipelines.jobs import Publish, PublishProgress
from headwater.testing.node import Node
from tests.pipelines.support import documents

ROOT = Path(__file__).parents[2]
NUMBERS = count()


class Topic:
    """A topic of a broker, and what readers of committed messages have of it.

    Args:
        form: the format of its messages; where it is no envelope, a message's value is the document.
    """

    def __init__(self, running: Broker, form: str = "debezium") -> None:
        self.broker, self.name, self.format = running, f"changes{next(NUMBERS)}", form
        self.headers = FORMATS[form].NAMES

    @property
    def url(self) -> str:
        return f"kafka://{self.broker.address}/{self.name}"

    def messages(self) -> list[Any]:
        return committed(self.broker.address, self.name)

    def events(self) -> list[dict[str, Any]]:
        """The envelopes, each partition in its order."""
        return [json.loads(message.value()) for message in self.messages() if message.value() is not None]

    def held(self) -> dict[bytes, Any]:
        """The documents that a reader of the topic has at its end; each deletion comes with its tombstone."""
        held: dict[bytes, Any] = {}
        for message in self.messages():
            value = None if message.value() is None else json.loads(message.value())
            if value is None:
                assert message.key() not in held or self.format != "debezium"
                held.pop(message.key(), None)
            elif self.format != "debezium":
                held[message.key()] = value
            elif value["op"] == "d":
                held.pop(message.key(), None)
            else:
                held[message.key()] = value["after"]
        return held

    def twice(self) -> list[Any]:
        """Changes that are there more than once."""
        names = self.headers
        places = Counter(
            (told[names.vbucket], told[names.vb_uuid], told[names.seqno], told[names.op], what)
            for message in self.messages()
            if names.rollback not in (told := dict(message.headers()))
            for what in [message.value() is None]
        )
        return [place for place, times in places.items() if times > 1]

    def undone(self) -> list[Any]:
        """Messages that undo something, tombstones behind another event left out."""
        marked = [message for message in self.messages() if self.headers.rollback in dict(message.headers())]
        return [each for each in marked if each.value() is not None or self.format != "debezium"]

    def make(self, **settings: str) -> None:
        """Make it, with two partitions."""
        from confluent_kafka import admin  # noqa: PLC0415 - of an extra

        client = admin.AdminClient({"bootstrap.servers": self.broker.address})
        client.create_topics([admin.NewTopic(self.name, 2, 1, config=settings)])[self.name].result(30)

    def drop(self) -> None:
        """Delete it."""
        from confluent_kafka import admin  # noqa: PLC0415 - of an extra

        client = admin.AdminClient({"bootstrap.servers": self.broker.address})
        client.delete_topics([self.name])[self.name].result(30)

    def set(self, name: str, value: str) -> None:
        """Change a setting."""
        from confluent_kafka import admin  # noqa: PLC0415 - of an extra

        client = admin.AdminClient({"bootstrap.servers": self.broker.address})
        place = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, self.name)
        place.add_incremental_config(admin.ConfigEntry(name, value, incremental_operation=admin.AlterConfigOpType.SET))
        client.incremental_alter_configs([place])[place].result(30)


def go(bucket: Node, topic: Topic, **more: Any) -> PublishProgress:
    """Publish what there is."""
    asked: dict[str, Any] = {"engine": "local", "workers": 0, "once": True, "retry_seconds": 0.0}
    asked["format"] = topic.format
    return Publish(bucket.url, topic.url, **(asked | more)).run()


def write(bucket: Node, name: str) -> None:
    """Overwrite some documents, remove some, add some."""
    with bucket.client() as client:
        assert client.set_many((f"a{i}", json.dumps(f"{name} over")) for i in range(20)) == {}
        client.delete_many([f"a{i}" for i in range(20, 30)])
        assert client.set_many((f"{name}{i}", json.dumps(f"{name} new")) for i in range(10)) == {}


def begin(bucket: Node) -> None:
    """Store forty documents."""
    with bucket.client() as client:
        assert client.set_many((f"a{i}", '"kept"') for i in range(40)) == {}


def truth(bucket: Node) -> dict[bytes, Any]:
    """Return the documents of the bucket."""
    return {key: json.loads(value) for key, value in documents(bucket).items()}


SCRIPT = """
import sys
from headwater import failpoints
from headwater.pipelines.formats import FORMATS
from headwater.pipelines.jobs import Publish
failpoints.arm(sys.argv[3])
small = {"maxChangesPerTrigger": "10"}
Publish(*sys.argv[1:3], engine="local", workers=0, once=True, reading=small, format=sys.argv[4]).run()
"""


def killed(bucket: Node, topic: Topic, point: str, times: int = 2) -> None:
    """Publish in a process that dies at a failpoint."""
    line = [sys.executable, "-c", SCRIPT, bucket.url, topic.url, f"{point}=kill@{times}", topic.format]
    assert subprocess.run(line, cwd=ROOT, env=os.environ, check=False, timeout=240).returncode == -9
