"""Readers, and how far behind they are: as the nodes tell it."""

import json

from typer.testing import CliRunner

from harness.nodes import cluster, put
from headwater import testing
from headwater.cli.app import app
from tests.cli.support import Run


def test_a_reader_that_has_not_confirmed_shows_with_what_it_has_yet_to_be_sent(run: Run, node: testing.Node) -> None:
    stored = 200
    with node.client() as client:
        client.set_many((f"streams-{number}", b"x" * 1000) for number in range(stored))
        with client.batches(name="slow reader", window_bytes=10_000, vbuckets=range(16)) as batches:
            next(batches)
            status, shown, problems = run("streams", "--json", "--worst", "2")
            assert (status, problems) == (0, "")
            (found,) = [each for each in json.loads(shown)["connections"] if "slow reader" in each["name"]]
            assert (found["node"], found["part"], found["dialect"]) == (node.address, "producer", "dcp")
            assert found["count"] == 16 and found["window"] == 10_000
            assert 0 < found["worst"] <= found["backlog"] < sum(client.seqnos().values())
            assert [each["remaining"] for each in found["streams"]] == [
                found["worst"],
                found["streams"][1]["remaining"],
            ]
            told = run("streams", "--worst", "1")[1].splitlines()
            (line,) = [each for each in told if "slow reader" in each]
            assert f"dcp producer of {node.address}" in line and f"backlog {found['backlog']:,}, " in line
            assert f"  vbucket {found['streams'][0]['vbucket']}: " in told[told.index(line) + 1]


def test_where_nobody_reads_that_is_said() -> None:
    with testing.node(vbuckets=4) as alone:
        told = CliRunner().invoke(app, ["streams", "--node", alone.url])
    assert (told.exit_code, told.stdout) == (0, "nobody reads from 1 node\n")


def test_a_node_that_is_down_is_named_and_the_others_are_shown() -> None:
    with cluster(vbuckets=4) as nodes:
        lives, dies = nodes.nodes[0], nodes.nodes[1]
        put(lives, 0, "key", b"value")
        with lives.client() as client, client.batches(name="reader", vbuckets=[0]) as batches:
            assert len(next(batches)) == 1
            dies.kill()
            told = CliRunner().invoke(app, ["streams", "--node", lives.url])
            as_json = CliRunner().invoke(app, ["streams", "--json", "--node", lives.url])
    assert (told.exit_code, as_json.exit_code) == (1, 1)
    assert f"reader: dcp producer of {lives.address}" in told.stdout
    assert told.stderr == f"headwater: {dies.address} does not answer (connection refused)\n"
    found = json.loads(as_json.stdout)
    assert len(found["connections"]) == 1 and found["silent"] == {dies.address: "connection refused"}
