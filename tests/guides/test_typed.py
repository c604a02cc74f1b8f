"""Pages for the command line, typed as printed, as a newcomer does: in an empty folder, in a shell."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from deltalake import DeltaTable, QueryBuilder

from harness.rest_catalog import rest_server
from headwater import testing
from headwater.node.config import OPTIONS
from tests.cli.guides import follow
from tests.guides.blocks import Block, Typed, blocks, pages
from tests.guides.declared import way
from tests.guides.terminal import Terminal
from tests.guides.test_python import create_collections
from tests.lake.iceberg.support import queried
from tests.lake.s3_server import BUCKET, make_bucket, s3_server
from tests.pipelines.memcached_server import real_memcached
from tests.pipelines.redis_server import redis_server

FOLLOWED = {
    "README.md",
    "docs/howto/backup.md",
    "docs/howto/buckets.md",
    "docs/howto/cluster.md",
    "docs/howto/collections.md",
    "docs/howto/copy.md",
    "docs/howto/iceberg.md",
    "docs/howto/invalidate.md",
    "docs/howto/load.md",
    "docs/howto/mirror.md",
    "docs/howto/operate.md",
    "docs/howto/tls.md",
    "docs/howto/users.md",
    "docs/tutorial.md",
}


def typed(page: str) -> list[Block]:
    return [block for block in blocks(page) if isinstance(way(block), Typed)]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Terminal]:
    """A terminal whose 127.0.0.1:11210 is a free port, for servers and for clients."""
    port, tls = free_port(), free_port()
    instead = {
        "--host 0.0.0.0": "--host 127.0.0.1",
        "127.0.0.1:11210": f"127.0.0.1:{port}",
        "localhost:11207": f"localhost:{tls}",
    }
    instead |= {"//localhost/": f"//localhost:{tls}/", "tls=11207": f"tls={tls}"}
    environment = {
        "HEADWATER_PORT": str(port),
        "HEADWATER_TLS_PORT": str(tls),
        "HEADWATER_NODE": f"couchbase://127.0.0.1:{port}/default",
    }
    with Terminal(tmp_path / "home", instead, environment) as terminal:
        yield terminal


def test_every_page_that_is_typed_is_typed_here() -> None:
    assert {page for page in pages() if typed(page)} == FOLLOWED


@pytest.mark.battery
def test_the_first_node_of_the_readme(alone: Terminal) -> None:
    install, talk = typed("README.md")
    (pip, _), (serve, ready) = install.answers()
    assert pip == "pip install ."  # by whom this runs
    assert alone.begin(serve) == ready
    alone.follow(talk)


def trio(stack: ExitStack, **options: object) -> list[testing.Node]:
    return [stack.enter_context(testing.node(vbuckets=16, **options)) for _ in range(4)]  # type: ignore[arg-type]


def addresses(nodes: list[testing.Node]) -> dict[str, str]:
    return {f"10.0.0.{number}:11210": node.address for number, node in enumerate(nodes, 1)}


@pytest.mark.battery
def test_the_guide_of_clusters(tmp_path: Path) -> None:
    begin, join, look, grow, _, dead, again = typed("docs/howto/cluster.md")
    with ExitStack() as stack:
        nodes = trio(stack, vbucket_state="none")
        terminal = stack.enter_context(Terminal(tmp_path, {**addresses(nodes), "1,024 vbuckets": "16 vbuckets"}))
        (_, nothing), (init, told) = begin.answers()
        assert nothing == ""
        shown = terminal.type(init)
        assert re.sub(r"\d{6,}", "N", shown) == re.sub(r"\d{6,}", "N", told)
        assert join.commands()[1].startswith("headwater cluster rebalance")  # another cluster: the next test
        (status, table) = look.answers()[0]
        shown = terminal.type(status)
        first = re.compile(r"^ ?([\w.:]+)", re.MULTILINE)  # of each line; the numbers are of that cluster
        assert first.findall(shown) == first.findall(table)
        for command in grow.commands():
            terminal.type(command, "y\n")
            if "--remove" in command:
                terminal.type("headwater cluster rebalance 10.0.0.1:11210 --add 10.0.0.2:11210 --replicas 1", "y\n")
        nodes[2].kill()
        terminal.type(dead.commands()[0], "y\n")
        nodes[2].restart()
        terminal.type(again.commands()[0], "y\n")
        assert "each vbucket has one owner" in terminal.type(status)


@pytest.mark.battery
def test_a_node_with_data_becomes_a_cluster_as_the_guide_says(tmp_path: Path) -> None:
    _, join, _, _, _, dead, _ = typed("docs/howto/cluster.md")
    with ExitStack() as stack:
        first = stack.enter_context(testing.node(vbuckets=16))
        nodes = [first, *trio(stack, vbucket_state="none")[:2]]
        with first.client() as bucket:
            bucket.set_many((f"k{number}", "v") for number in range(100))
        terminal = stack.enter_context(Terminal(tmp_path, addresses(nodes)))
        for command in join.commands():
            terminal.type(command, "y\n")
        nodes[2].kill()
        terminal.type(dead.commands()[0], "y\n")
        with first.client() as bucket:
            assert len(bucket.get_many(f"k{number}" for number in range(100))) == 100


@pytest.mark.battery
def test_the_guide_of_backups(tmp_path: Path) -> None:
    whole, sql, _, point = typed("docs/howto/backup.md")
    with testing.node(vbuckets=8, bucket="orders") as source, testing.node(vbuckets=8, bucket="orders") as target:
        with source.client() as bucket:
            bucket.set_many((f"k{number}", f"v{number}") for number in range(100))
        instead = {"10.0.0.7:11210": source.address, "10.1.0.7:11210": target.address}
        with Terminal(tmp_path, instead, {"HEADWATER_NODE": source.url}) as terminal:
            for command in whole.commands():
                terminal.type(command)
            with target.client() as bucket:
                assert len(bucket.get_many(f"k{number}" for number in range(100))) == 100
            (tmp_path / "question.sql").write_text(sql.text)
            query = "import duckdb; print(len(duckdb.sql(open('question.sql').read()).fetchall()))"
            assert terminal.type(f'cd backups 2>/dev/null && cp ../question.sql . && python -c "{query}"') == "100\n"
            with source.client() as bucket:
                bucket.set("k1", "later")
            save, restore = point.commands()
            terminal.type(save)
            with source.client() as bucket:
                bucket.set("k1", "too late")
            terminal.type(restore)
            with source.client() as bucket:
                assert bucket.get("k1").value == b"later"


@pytest.mark.battery
def test_the_guide_of_backups_in_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, block, _ = typed("docs/howto/backup.md")
    access, create, *more = block.commands()
    with (
        s3_server() as environment,
        testing.node(vbuckets=4, bucket="orders") as source,
        testing.node(vbuckets=4, bucket="orders") as target,
    ):
        for name, text in environment.items():
            monkeypatch.setenv(name, text)
        make_bucket()
        with source.client() as bucket:
            bucket.set_many((f"k{number}", "v") for number in range(100))
        instead = {"10.0.0.7:11210": source.address, "10.1.0.7:11210": target.address, "copies": BUCKET}
        instead |= {"https://s3.example.com": environment["AWS_ENDPOINT_URL"], "=...": "=test"}
        with Terminal(tmp_path, instead) as terminal:
            terminal.type(access)
            assert ": full, 100 stored" in terminal.type(create)
            shown = [terminal.type(command) for command in more]
        with target.client() as bucket:
            assert len(bucket.get_many(f"k{number}" for number in range(100))) == 100
    assert "full" in shown[0] and "1 backup, 1 file" in shown[1] and "1 stay" in shown[3]


@pytest.mark.battery
def test_the_guide_of_collections(tmp_path: Path) -> None:
    with testing.node(vbuckets=4) as node, Terminal(tmp_path, {}, {"HEADWATER_NODE": node.url}) as terminal:
        terminal.instead["couchbase://127.0.0.1/default"] = node.url
        make, program, talk, history, drop = typed("docs/howto/collections.md")
        shown = [terminal.type(command) for command in make.commands()]
        assert "orders" in shown[2] and "86400" in shown[2].replace(",", "")
        assert terminal.type(f"python - <<'END'\n{program.text}END").startswith("b'paid' ")
        (tmp_path / "orders.jsonl").write_text('{"id": "four", "open": true}\n')
        stored, got, _, orders, scope, seqnos = (
            terminal.type(command + " --once" * command.startswith("headwater tail")) for command in talk.commands()
        )
        assert stored.startswith("cas ") and got == "paid"
        assert all(key in told for key in ("one", "two", "three", "four") for told in (orders, scope))
        assert {line.split()[1] for line in seqnos.splitlines()} == {"shop.carts", "shop.orders"}
        _, taken, given = (terminal.type(command) for command in history.commands())
        assert "shop.carts has no history" in taken and "shop.carts has a history" in given
        for command in drop.commands():
            terminal.type(command, "y\n")
        assert "carts" not in terminal.type("headwater collection list")


@pytest.mark.battery
def test_the_guide_of_buckets(tmp_path: Path) -> None:
    with testing.node(vbuckets=4) as node, Terminal(tmp_path, {}, {"HEADWATER_NODE": node.url}) as terminal:
        make, quota, history, drop = typed("docs/howto/buckets.md")
        shown = [terminal.type(command) for command in make.commands()]
        assert "orders" in shown[2] and "carts" in shown[2]
        assert "4096 MiB" in [terminal.type(command) for command in quota.commands()][1]
        assert "604800 s and at most 20480 MiB" in [terminal.type(command) for command in history.commands()][1]
        for command in drop.commands():
            terminal.type(command, "y\n")
        assert "carts" not in terminal.type("headwater bucket list")


@pytest.mark.battery
def test_the_guide_to_load_and_export(tmp_path: Path) -> None:
    with testing.node(vbuckets=4) as node, Terminal(tmp_path, {}, {"HEADWATER_NODE": node.url}) as terminal:
        rows, whole = typed("docs/howto/load.md")
        (tmp_path / "orders.jsonl").write_text('{"id": "one", "open": true}\n{"id": "two"}\n')
        shown = [terminal.type(command) for command in rows.commands()]
        assert [text.split(" in ")[0] for text in shown[:2]] == ["2 documents stored", "2 documents written"]
        assert (tmp_path / "orders.csv").read_text().splitlines() == ["id,open", "one,true", "two,"]
        assert [terminal.type(command) for command in whole.commands()][-1] == "hello"


@pytest.mark.battery
def test_the_guide_of_users(alone: Terminal) -> None:
    admin, more, _, secret = typed("docs/howto/users.md")
    (add, told), (serve, _) = admin.answers()
    assert alone.type(add, "s3cret-word\ns3cret-word\n").splitlines()[-1] == told.splitlines()[-1]
    (alone.folder / "app.password").write_text("word of app\n")
    (alone.folder / "app.password").chmod(0o600)
    alone.begin(serve)
    alone.follow(more)
    alone.end()
    alone.follow(secret)


@pytest.mark.battery
def test_the_guide_of_users_of_several_nodes(tmp_path: Path) -> None:
    _, _, several, _ = typed("docs/howto/users.md")
    for name in ("ann", "app", "secret"):
        (tmp_path / f"{name}.password").write_text(f"word of {name}\n")
        (tmp_path / f"{name}.password").chmod(0o600)
    options = {"user": "ann", "password_file": tmp_path / "ann.password"}
    options |= {"vbucket_state": "none", "cluster_secret_file": tmp_path / "secret.password"}
    with ExitStack() as stack:
        nodes = trio(stack, **options)[:3]
        names = {f"db{number}:11210": node.address for number, node in enumerate(nodes, 1)}
        terminal = stack.enter_context(Terminal(tmp_path, names, {"HEADWATER_PASSWORD": "word of ann"}))
        terminal.type(f"headwater cluster init {' '.join(names)} --user ann")
        (add, told), (ask, _) = several.answers()
        assert terminal.type(add).splitlines()[-1] == told.splitlines()[-1]  # nobody sits there to be asked
        listed = terminal.type(ask)
    assert "app: read, write[orders]" in listed


@pytest.mark.battery
def test_the_guide_of_tls(alone: Terminal) -> None:
    begin, ask, certificates, names = typed("docs/howto/tls.md")
    (alone.folder / "ann.password").write_text("secret\n")
    (alone.folder / "ann.password").chmod(0o600)
    alone.follow(begin)
    alone.follow(ask)
    for block in (certificates, names):
        alone.follow(block)


def test_the_options_and_the_scrape_of_the_guide_to_operate() -> None:
    options, scrape = typed("docs/howto/operate.md")
    assert set(tomllib.loads(options.text)) <= {option.name.replace("-", "_") for option in OPTIONS}
    yaml = pytest.importorskip("yaml")
    (job,) = yaml.safe_load(scrape.text)["scrape_configs"]
    assert job["job_name"] == "headwater" and len(job["static_configs"][0]["targets"]) == 3


@pytest.mark.battery
def test_the_guide_of_mirrors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror, quarantine, collections, changes, care, broken = typed("docs/howto/mirror.md")
    with testing.node(vbuckets=4) as node:
        with node.client() as bucket:
            bucket.set_many((f"k{number}", "v") for number in range(50))
        with Terminal(tmp_path, {"127.0.0.1:11210": node.address}) as terminal:  # one after the other, in one folder
            (command,) = mirror.commands()
            terminal.type(f"{command} --engine local --once --changelog")
            for block in (quarantine, collections):
                first, *others = block.commands()
                terminal.type(first.removesuffix(" --once") + " --once")
                assert all(terminal.type(other) for other in others)
            monkeypatch.chdir(tmp_path)
            *repairs, again = broken.commands()
            for each in (*care.commands(), *repairs):
                follow(each, terminal.instead)
            terminal.type(again)
        reader = QueryBuilder().register("changes", DeltaTable(tmp_path / "lake" / "default_changes"))
        assert sum(batch.num_rows for batch in reader.execute(changes.text)) == 50


@pytest.mark.battery
@pytest.mark.skipif(sys.platform != "linux", reason="the packages of DuckDB's extensions are for Linux")
def test_the_guide_of_iceberg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, read, asked, both, kept, ids, followed = typed("docs/howto/iceberg.md")
    with testing.node(vbuckets=4) as node, rest_server() as catalog:
        with node.client() as bucket:
            bucket.set_many((f"k{number}", "v") for number in range(50))
        instead = {"127.0.0.1:11210": node.address, "http://127.0.0.1:8181": catalog.url}
        with Terminal(tmp_path, instead) as terminal:
            install, *commands = begin.commands()
            assert install == "pip install '.[iceberg]'"  # by whom this runs
            mirrored, verified = (terminal.type(command) for command in commands)
            assert mirrored and "all is well" in verified
            for command in (*both.commands(), *kept.commands(), *followed.commands()):
                terminal.type(command)
        assert catalog.tables.keys() == {"orders"}
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(read.text, found)
    assert sorted(found["rows"]["key"].to_pylist()) == sorted(f"k{number}".encode() for number in range(50))
    assert "iceberg_scan('./lake/default')" in asked.text
    for place in ("./lake/default", "./lake/both", "./lake/kept", "./lake/shop"):
        assert len(queried(place, "key, value, seqno")) == 50
    columns, place = re.fullmatch(r"SELECT (.*) FROM iceberg_scan\('(.*)/_iceberg'\)", ids.text.strip()).groups()  # type: ignore[union-attr]
    assert len({number for number, *_ in queried(place, columns)}) == 50


_OF_THAT_DAY = re.compile(r"batch \d+|\d{8}T\d{6}Z|\d{6,}| in [\d.]+ s.*|[\d,]+ bytes")


@pytest.mark.battery
def test_the_tutorial_ends_with_a_table_that_equals_the_node_that_is_left(tmp_path: Path) -> None:
    one, two = free_port(), free_port()
    instead = {
        "127.0.0.1:11210": f"127.0.0.1:{one}",
        "127.0.0.1:11220": f"127.0.0.1:{two}",
        "--port 11220": f"--port {two}",
    }
    environment = {"HEADWATER_PORT": str(one), "HEADWATER_NODE": f"couchbase://127.0.0.1:{one}/default"}

    def lines(text: str) -> list[str]:
        found = [" ".join(_OF_THAT_DAY.sub("N", line).split()) for line in text.splitlines() if line.strip()]
        return list(dict.fromkeys(found))  # how often a mirror looks until nothing is new is the machine's affair

    with Terminal(tmp_path / "try", instead, environment) as terminal:
        try:
            for block in typed("docs/tutorial.md"):
                for command, told in block.answers():
                    assert lines(terminal.type(command)) == lines(told), f"{block}: {command}"
        finally:
            for left in terminal.folder.glob("*.pid"):
                with suppress(ProcessLookupError):
                    os.kill(int(left.read_text()), signal.SIGKILL)


@pytest.mark.spark
@pytest.mark.battery
@pytest.mark.timeout(900)  # a Spark of its own for each command
def test_the_guide_to_copy_a_bucket(tmp_path: Path) -> None:
    whole, chosen = typed("docs/howto/copy.md")
    with testing.node(vbuckets=4) as source, testing.node(vbuckets=8) as target:
        create_collections(source)
        with source.client() as bucket:
            bucket.set_many((f"k{number}", "v") for number in range(100))
            bucket.collection("shop.orders").set("one", "paid")
        names = {
            "10.0.0.7/orders": "SOURCE",
            "10.1.0.7/orders": "TARGET",
            "//a/store": "//SOURCE",
            "//b/store": "//TARGET",
        }
        instead = names | {"SOURCE": f"{source.address}/default", "TARGET": f"{target.address}/default"}
        with Terminal(tmp_path, instead) as terminal:
            for block in (chosen, whole):
                (command,) = block.commands()
                assert "batch 1: " in terminal.type(f"{command} --once")
                with target.client() as bucket:
                    assert bucket.collection("shop.orders").get("one").value == b"paid"
        with target.client() as bucket:
            assert len(bucket.get_many(f"k{number}" for number in range(100))) == 100


@pytest.mark.spark
@pytest.mark.interop
@pytest.mark.battery
@pytest.mark.skipif(shutil.which("memcached") is None, reason="no memcached here: apt install memcached")
@pytest.mark.timeout(1200)  # a Spark of its own for each command
def test_the_guide_to_invalidate_caches(tmp_path: Path) -> None:
    plain, templates, collections = typed("docs/howto/invalidate.md")
    with testing.node(vbuckets=4) as node, real_memcached() as port, redis_server() as cache:
        create_collections(node)
        with node.client() as bucket:
            bucket.set("a", "v")
            bucket.collection("shop.orders").set("one", "v")
        server = redis.Redis.from_url(cache)
        server.mset(dict.fromkeys(("user:a", "user:a:page", "user:b", "shop.orders:one"), "stale"))
        instead = {"10.0.0.7/users": f"{node.address}/default", "10.0.0.7/store": f"{node.address}/default"}
        instead |= {"10.0.0.9:11211": f"127.0.0.1:{port}", "redis://10.0.0.9:6379/0": cache}
        with Terminal(tmp_path, instead) as terminal:
            shown = [terminal.type(f"{block.commands()[0]} --once") for block in (plain, templates)]
            assert "1 changes, 1 keys deleted, 0 of them were there" in shown[0]
            assert "1 changes, 2 keys deleted, 2 of them were there" in shown[1]
            assert set(server.keys()) == {b"user:b", b"shop.orders:one"}
            terminal.type(f"{collections.commands()[0]} --once")
        assert server.keys() == [b"user:b"]
        server.close()
