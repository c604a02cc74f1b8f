"""Pages at the address that workers have in common are of all of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory

from prometheus_client.parser import text_string_to_metric_families

from harness.nodes import until
from headwater import testing
from headwater.node.rest.gathered import GATHERED, answer, question, with_others
from headwater.node.rest.made import Made
from headwater.testing.node import Node
from headwater.wire.address import Address
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import vbucket_of
from tests.cluster.nodes import command
from tests.node.wire import Client
from tests.node.workers.test_supervising import workers_of

VBUCKETS = 8


def asked(node: Node, path: str, *, port: int | None = None, **headers: str) -> tuple[int, str]:
    """The status and the body of a page."""
    connection = HTTPConnection(node.host, port or node.port, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


def series(text: str) -> dict[tuple[str, str], float]:
    """The values by the name of a metric and the worker; the last one where more labels tell them apart."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert len({(sample.name, *sorted(sample.labels.items())) for sample in samples}) == len(samples)
    return {(sample.name, sample.labels["worker"]): sample.value for sample in samples}


def test_the_port_for_pages_is_of_all_workers_and_answers_though_clients_have_filled_them() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2, http_port=0, connections_max=2) as node, ExitStack() as stack:
        served: list[Client] = []

        def are_full() -> bool:
            client = stack.enter_context(Client(node.port))
            with suppress(OSError, AssertionError):  # one too many for the worker that has taken it
                for vb in (0, 1):
                    client.ask(Opcode.GET, key=b"k", vbucket=vb)
                served.append(client)
            return len(served) == 4

        until(are_full, "each worker has as many as it takes")
        for _ in range(6):  # whichever worker is reached
            status, text = asked(node, "/metrics", port=node.http_port)
            ups = [series(text)["headwater_worker_up", str(number)] for number in range(2)]
            assert status == 200 and ups == [1.0, 1.0]
            assert asked(node, "/readyz", port=node.http_port)[0] == 200
            assert asked(node, "/healthz", port=node.http_port)[0] == 200
        stack.close()  # or it is not heard by the other, which is full
        dies = workers_of(node)[1]
        os.kill(dies, signal.SIGKILL)
        until(lambda: len(workers_of(node)) == 2 and dies not in workers_of(node), "another worker")
        until(lambda: asked(node, "/readyz", port=node.http_port)[0] == 200, "it is ready")


def test_one_scrape_has_the_metrics_of_all_workers() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=3) as node:
        with Client(node.port) as client:
            for number in range(60):
                key = b"key-%d" % number
                vb = vbucket_of(key, VBUCKETS)
                assert client.ask(Opcode.SET, key=key, vbucket=vb, extras=bytes(8)).status == 0
        for _ in range(3):  # whichever worker is reached
            status, text = asked(node, "/metrics")
            values = series(text)
            assert status == 200
            assert [values["headwater_worker_up", str(number)] for number in range(3)] == [1.0] * 3
            families = {family.name: family for family in text_string_to_metric_families(text)}
            assert text.count("# TYPE headwater_documents ") == 1
            counts = [
                sample.value for sample in families["headwater_documents"].samples if sample.labels["state"] == "active"
            ]
            assert (len(counts), sum(counts)) == (3, 60)
            assert families["headwater_commit_seconds"].type == "histogram"


def test_a_worker_that_is_away_is_shown_and_makes_the_node_unready() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node:
        until(lambda: asked(node, "/readyz")[0] == 200, "all are ready")
        state = json.loads(asked(node, "/readyz")[1])
        assert (state["ready"], state["workers_away"], state["fenced_vbuckets"]) == (True, [], 0)
        assert asked(node, "/healthz") == (200, '{"alive": true}')
        os.kill(workers_of(node)[0], signal.SIGSTOP)
        os.kill(workers_of(node)[0], signal.SIGKILL)
        until(lambda: node.log.count("worker 0") > 0 and asked(node, "/readyz")[0] == 200, "it is back")


def test_who_may_not_read_metrics_reads_none_of_any_worker() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node:
        secret = node.data.parent / "password"
        secret.write_text("secret")
        secret.chmod(0o600)
        line = ("user", "add", "bob", "--roles", "read", "--data", str(node.data), "--password-file", str(secret))
        assert command(*line)[0] == 0
        until(lambda: node.log.count("users changed") >= 2, "all workers know him")
        assert asked(node, "/metrics")[0] == 401
        assert asked(node, "/metrics", Authorization="Basic Ym9iOnNlY3JldA==")[0] == 403


METRICS = b'# HELP a Text.\n# TYPE a counter\na_total 1.0\n# HELP b More.\n# TYPE b gauge\nb{x="1"} 2.0\n'


def gathered(path: str, own: Made, *others: Made | None) -> Made:
    """A page with those of other workers, which answer, or hang up."""

    async def run(folder: str) -> Made:
        relays, servers = {}, []
        for number, made in enumerate(others, 1):
            relays[Address("a", number)] = relay = str(Path(folder) / f"worker-{number}")

            async def serve(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, made: Made | None = made
            ) -> None:
                asking = Frame.decode(await reader.readexactly(len(question(path, "u", "p"))))
                assert json.loads(asking.value) == {"peer": "p", "user": "u", "page": path}
                writer.write(answer(made) if made is not None else b"")
                writer.close()

            servers.append(await asyncio.start_unix_server(serve, relay))
        loop = asyncio.get_running_loop()
        try:
            return await with_others(loop, path, question(path, "u", "p"), own, relays)
        finally:
            for server in servers:
                server.close()

    with TemporaryDirectory(prefix="headwater-pages-") as folder:
        return asyncio.run(run(folder))


def test_series_of_one_family_stand_together_with_the_workers_numbers() -> None:
    made = gathered("/metrics", Made(METRICS, content_type="text"), Made(METRICS, content_type="text"), None)
    assert (made.status, made.content_type) == (200, "text")
    assert made.body.decode().splitlines() == [
        "# HELP a Text.", "# TYPE a counter", 'a_total{worker="0"} 1.0', 'a_total{worker="1"} 1.0',
        "# HELP b More.", "# TYPE b gauge", 'b{worker="0",x="1"} 2.0', 'b{worker="1",x="1"} 2.0',
        "# HELP headwater_worker_up Whether a worker has answered this scrape.", "# TYPE headwater_worker_up gauge",
        'headwater_worker_up{worker="0"} 1.0', 'headwater_worker_up{worker="1"} 1.0',
        'headwater_worker_up{worker="2"} 0.0',
    ]  # fmt: skip


def test_where_there_are_no_metrics_the_page_says_so() -> None:
    refused = Made(b"none", 404)
    assert gathered("/metrics", refused, refused) == refused


def test_a_node_is_ready_when_all_its_workers_are() -> None:
    ready = Made(b'{"ready": true, "fenced_vbuckets": 0, "empty": false}')
    fenced = Made(b'{"ready": false, "fenced_vbuckets": 3, "empty": true}', 503)
    assert gathered("/readyz", ready, ready).status == 200
    made = gathered("/readyz", ready, fenced, fenced)
    assert made.status == 503
    assert json.loads(made.body) == {"ready": False, "fenced_vbuckets": 6, "empty": True, "workers_away": []}
    away = gathered("/readyz", ready, None)
    assert (away.status, json.loads(away.body)["workers_away"]) == (503, [1])
    assert {"/metrics", "/readyz"} == GATHERED
