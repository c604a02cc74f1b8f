"""The cache, the observer and the index of the examples, on real nodes while vbuckets move and nodes fail."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from headwater import client, testing
from headwater.errors import KeyNotFound
from tests.cluster.nodes import Writer, at, command, empty_nodes, init, rebalance, until_level

FOLDER = Path(__file__).parent.parent.parent / "examples"
DEADLINE_SECONDS = 120.0
KEYS = [f"doc:{number}" for number in range(200)]


def example(name: str) -> ModuleType:
    """A script of the examples, not run."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


CACHE, OBSERVATION, INDEX = map(example, ("tap_cache_invalidation", "tap_observation", "tap_external_index"))


def wait_for(found: Callable[[], object], wanted: object, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (last := found()) != wanted:
        assert time.monotonic() < deadline, f"{what}: {differences(last, wanted)}"
        time.sleep(0.05)


def differences(last: object, wanted: object) -> object:
    if isinstance(last, dict) and isinstance(wanted, dict):
        keys = [key for key in {*last, *wanted} if last.get(key) != wanted.get(key)]
        return len(keys), [(key, last.get(key), wanted.get(key)) for key in sorted(keys)[:5]]
    return last, wanted


class Uses:
    """The three at work, and what they should have."""

    def __init__(self, nodes: list[testing.Node], folder: Path) -> None:
        self.url = f"couchbase://{','.join(node.address for node in nodes)}/default"
        self.documents: dict[str, str] = {}
        self.written = 0
        self.file = folder / "index.sqlite"
        self.cache: Any = CACHE.Cache(self.url)
        self.observer: Any = OBSERVATION.Observer(self.url)
        self.index: Any = INDEX.Index(self.file)
        self.following: Any = INDEX.follow(self.index, self.url)
        self.following.open()

    def close(self) -> None:
        for each in (self.cache, self.observer, self.following, self.index):
            each.close()

    def write(self, value: str) -> None:
        """Store every document anew and delete one; the cache had all of them before."""
        for key in self.documents:
            self.cache.get(key.encode())
        with client.connect(self.url, timeout_seconds=DEADLINE_SECONDS) as bucket:
            assert not bucket.set_many((key, f"{value} {key}") for key in KEYS)
            self.documents = {key: f"{value} {key}" for key in KEYS}
            self.wait_until_counted(len(KEYS))  # or the deletion might be merged with the change before it
            bucket.delete(KEYS[0])
            del self.documents[KEYS[0]]
            self.wait_until_counted(1)

    def wait_until_counted(self, more: int) -> None:
        self.written += more
        assert self.observer.wait_for(self.written, DEADLINE_SECONDS), (self.observer.seen, self.written)

    def check(self) -> None:
        """All three have what the bucket has; and the observer has seen each change once."""
        wait_for(self.indexed, {key: set(value.split()) for key, value in self.documents.items()}, "index")
        wait_for(self.cached, self.documents, "cache")
        assert self.observer.seen.total() == self.written, self.observer.seen

    def indexed(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for word, key in self.index._database.execute("SELECT word, key FROM words"):
            found.setdefault(key, set()).add(word)
        return found

    def cached(self) -> dict[str, str]:
        found = {}
        for key in KEYS:
            try:
                found[key] = self.cache.get(key.encode()).decode()
            except KeyNotFound:
                continue
        return found


@contextmanager
def reading(cache: Any, writer: Writer) -> Iterator[None]:
    """Somebody reads through the cache what somebody writes."""
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            for key in tuple(writer.acknowledged):
                cache.get(key)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(DEADLINE_SECONDS)
        assert not thread.is_alive()


@contextmanager
def at_work(nodes: list[testing.Node], folder: Path) -> Iterator[Uses]:
    uses = Uses(nodes, folder)
    try:
        yield uses
    finally:
        uses.close()


def test_they_stay_right_when_vbuckets_move_between_two_nodes(tmp_path: Path) -> None:
    with (
        testing.node(vbuckets=16) as old,
        testing.node(vbuckets=16, vbucket_state="none") as new,
        at_work([old, new], tmp_path) as uses,
        client.connect(old.url) as before,
        client.connect(new.url, vbuckets=16) as after,  # no cluster: whoever writes knows where
    ):
        vbucket = before.vbucket_of("price")
        before.set("price", "10")
        uses.wait_until_counted(1)
        wait_for(lambda: uses.index.find("10"), ["price"], "index")
        assert uses.cache.get(b"price") == b"10"
        moving = ("move", "--from", old.address, "--to", new.address, "--vbuckets", str(vbucket), "--takeover")
        assert command(*moving)[0] == 0
        after.set("price", "12")
        uses.wait_until_counted(1)
        wait_for(lambda: (uses.index.find("12"), uses.index.find("10")), (["price"], []), "index")
        wait_for(lambda: b"price" in uses.cache._values, False, "cache")
        after.delete("price")
        uses.wait_until_counted(1)
        wait_for(lambda: uses.index.find("12"), [], "index")


def test_they_stay_right_through_rebalance_and_failover(tmp_path: Path) -> None:
    with empty_nodes(3) as nodes:
        one, two, three = nodes
        init(one, two, replicas=1)
        with at_work(nodes, tmp_path) as uses:
            uses.write("first")
            uses.check()
            rebalance(one, add=at(three))
            uses.write("rebalanced")
            uses.check()
            until_level(*nodes)
            two.kill()
            assert command("cluster", "failover", one.address, "--dead", two.address, "--yes")[0] == 0
            uses.write("failed-over")
            uses.check()


def test_they_are_right_after_a_rebalance_under_writes(tmp_path: Path) -> None:
    with empty_nodes(3) as nodes:
        one, two, three = nodes
        init(one, two, replicas=1)
        with at_work([one, two], tmp_path) as uses:
            uses.write("first")
            with Writer(one) as writer, reading(uses.cache, writer):
                rebalance(one, add=at(three), remove=at(two))
            written = {key.decode(): value.decode() for key, value in writer.acknowledged.items()}
            expected = {key: set(value.split()) for key, value in (uses.documents | written).items()}
            wait_for(uses.indexed, expected, "index")
            wait_for(uses.cached, uses.documents, "cache")
            wait_for(lambda: {key: uses.cache.get(key.encode()).decode() for key in written}, written, "cache")
            wait_for(lambda: uses.cached() == uses.documents and uses.cache.hits > len(written), True, "it keeps them")


def test_an_index_that_was_away_has_what_changed_meanwhile(tmp_path: Path) -> None:
    with testing.node(vbuckets=16) as node:
        for value in ("first", "second"):
            index = INDEX.Index(tmp_path / "index.sqlite")
            with client.connect(node.url) as bucket, INDEX.follow(index, node.url):
                bucket.set_many((key, value) for key in KEYS)
                wait_for(lambda value=value, index=index: index.find(value), sorted(KEYS), "index")  # type: ignore[misc]
            index.close()
            with client.connect(node.url) as bucket:
                bucket.delete(KEYS[0])
        index = INDEX.Index(tmp_path / "index.sqlite")
        with INDEX.follow(index, node.url):
            wait_for(lambda: index.find("second"), sorted(KEYS[1:]), "index")
        assert index.find("first") == []
        index.close()
        INDEX.main([str(tmp_path / "index.sqlite"), "second"])


def test_as_commands_they_follow_a_bucket_until_ctrl_c_and_say_when_nobody_is_there(tmp_path: Path) -> None:
    index = str(tmp_path / "index.sqlite")
    with testing.node(vbuckets=16) as node, client.connect(node.url) as bucket:
        bucket.set("a", "red apple")
        with running("tap_observation.py", node.url) as observing, running("tap_external_index.py", node.url, index):
            wait_for(lambda: run("tap_external_index.py", index, "red"), "a\n", "index")
            wait_for(lambda: bucket.stats("tap")["ep_tap_count"], "2", "both listen")  # what was before is not counted
            bucket.set("b", "red wine")
            assert observing.stdout is not None
            assert observing.stdout.readline() == "stored b: 1\n"
            wait_for(lambda: run("tap_external_index.py", index, "red"), "a\nb\n", "index")
    for arguments in (("tap_observation.py", node.url), ("tap_external_index.py", node.url, index)):
        done = subprocess.run([sys.executable, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (1, False)
        assert node.address in done.stderr


def run(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=240, check=True
    ).stdout


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A script at work; at the end Ctrl-C, after which it ends well."""
    process = subprocess.Popen([sys.executable, *arguments], cwd=FOLDER, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0
