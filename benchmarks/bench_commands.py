"""The processor time that a node takes for each command past the kernel; beside another source tree's, if one is named.

    python -m benchmarks commands
    HEADWATER_BENCH_BESIDE=../before/src python -m benchmarks commands

Both nodes get the same pipelines in turn. Each pipeline is as short as the work that a node does in one turn of its
loop, so that both nodes commit as often. The processor time of the node's threads is measured, since a busy machine
changes it less than the time on the clock; the best of the rounds is printed, because it changes least.
"""

from __future__ import annotations

import os
import socket
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import Figure, publish
from headwater import testing
from headwater.wire import admin, bootstrap, documents, meta
from headwater.wire.framing import FrameBuffer
from headwater.wire.layout import Request

REQUESTS = 50
PIPELINES = 12
ROUNDS = 10
VBUCKETS = 16
KEYS = 25
VALUE = b"\xff" * 100


def requests(vb_uuid: int) -> dict[str, list[Request]]:
    """Return a pipeline of each command, by name; the documents are in vbucket 0."""
    keys = [b"key-%06d" % (number % KEYS) for number in range(REQUESTS)]
    numbers = [b"number-%06d" % (number % KEYS) for number in range(REQUESTS)]
    vbuckets = [number % VBUCKETS for number in range(REQUESTS)]
    return {
        "GET_VBUCKET": [admin.GetVbucket(vbucket=vb) for vb in vbuckets],
        "GET_FAILOVER_LOG": [admin.GetFailoverLog(vbucket=vb) for vb in vbuckets],
        "GET_ALL_VB_SEQNOS": [admin.GetAllVbSeqnos() for _ in vbuckets],
        "VERSION": [bootstrap.Version() for _ in vbuckets],
        "OBSERVE": [meta.Observe(keys=[(0, key)]) for key in keys],
        "OBSERVE of 10 keys": [meta.Observe(keys=[(0, key) for key in keys[:10]]) for _ in keys],
        "OBSERVE_SEQNO": [meta.ObserveSeqno(vb_uuid=vb_uuid) for _ in keys],
        "GET_META": [meta.GetMeta(key=key) for key in keys],
        "GAT": [documents.GetAndTouch(key=key, expiration=0) for key in keys],
        "TOUCH": [documents.Touch(key=key, expiration=0) for key in keys],
        "APPEND": [documents.Append(key=key, value=b"x") for key in keys],
        "INCREMENT": [documents.Increment(key=key, delta=1) for key in numbers],
    }


class Talk:
    """A connection to a node that also measures the node's processor time."""

    def __init__(self, node: testing.Node) -> None:
        self._tasks = Path(f"/proc/{node.pid}/task")
        self._socket = socket.create_connection((node.host, node.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ask([documents.Set(key=b"key-%06d" % number, value=VALUE) for number in range(KEYS)])
        self.uuid = int.from_bytes(self.ask([admin.GetFailoverLog()])[0][:8])

    def ask(self, pipeline: list[Request]) -> list[bytes]:
        """Send all requests at once and return the values of their answers; AssertionError when one failed."""
        self._socket.sendall(b"".join(request.encode() for request in pipeline))
        return list(self._answers(len(pipeline)))

    def _answers(self, count: int) -> Iterator[bytes]:
        reader = FrameBuffer()
        while count:
            for frame in reader.receive_data(self._socket.recv(1 << 20)):
                if frame.status:
                    raise AssertionError(f"refused: {frame}")
                count -= 1
                yield frame.value

    def microseconds(self, pipeline: list[Request]) -> float:
        """Return the node's processor time for one request of the pipeline, in microseconds."""
        before = self._processor_ns()
        for _ in range(PIPELINES):
            self.ask(pipeline)
        return (self._processor_ns() - before) / 1000 / PIPELINES / len(pipeline)

    def _processor_ns(self) -> int:
        return sum(int((task / "schedstat").read_text().split()[0]) for task in self._tasks.iterdir())

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def main() -> None:
    """Measure each command at this tree's node, and in turn at the other's if there is one."""
    beside = os.environ.get("HEADWATER_BENCH_BESIDE")
    with ExitStack() as stack:
        talks = []
        for source in [None, beside] if beside else [None]:
            environment = {"PYTHONPATH": str(Path(source).resolve())} if source else None
            talk = Talk(stack.enter_context(testing.node(vbuckets=VBUCKETS, environment=environment)))
            stack.callback(talk.close)
            talks.append(talk)
        pipelines = [requests(talk.uuid) for talk in talks]
        for name in pipelines[0]:
            taken: list[list[float]] = [[] for _ in talks]
            for number in range(ROUNDS):
                for which in range(len(talks))[:: 1 if number % 2 else -1]:
                    taken[which].append(talks[which].microseconds(pipelines[which][name]))
            _publish(name, taken)


def _publish(name: str, taken: list[list[float]]) -> None:
    ours, theirs = min(taken[0]), min(taken[1]) if len(taken) > 1 else None
    title = f"{name}, processor time, best of {ROUNDS}"
    beside = ("beside", theirs, ours / theirs) if theirs else (None, None, None)
    publish(Figure(title, "us", ours, statistics.median(taken[0]), max(taken[0]), *beside))


if __name__ == "__main__":
    main()
