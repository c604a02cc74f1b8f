"""pymemcache and pylibmc, as applications use them: the text protocol, and what it stores is what others read."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymemcache
import pytest
from pymemcache import exceptions

from headwater import client, testing
from headwater.testing.node import Node
from tests.interop import observed
from tests.interop.observed import DEFAULT, Document
from tests.interop.toolchains import python_version

pytestmark = [
    pytest.mark.interop,
    pytest.mark.program("pymemcache", python_version("pymemcache"), "documents, CAS, counters, login, by text"),
]
LIBMEMCACHED = "pylibmc (libmemcached)", python_version("pylibmc")


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with testing.node(vbuckets=64) as node:
        yield node


@pytest.fixture
def cache(node: Node) -> Iterator[Any]:
    with contextlib.closing(pymemcache.Client((node.host, node.port), timeout=120, default_noreply=False)) as cache:
        cache.flush_all()
        yield cache


def test_documents_come_back_one_by_one_and_many_at_once(
    node: Node, cache: Any, compared: Callable[[int], None]
) -> None:
    assert cache.set("a", b"1") and cache.get("a") == b"1" and cache.get("b") is None
    many = {f"k{each}": b"%d" % each for each in range(2000)}
    assert cache.set_many(many) == [] and cache.get_many(list(many)) == many
    assert cache.delete_many(list(many)[:1000]) and len(cache.get_many(list(many))) == 1000
    kept = {(DEFAULT, key): Document(many[key], {}) for key in list(many)[1000:]}
    assert observed.documents(node) == kept | {(DEFAULT, "a"): Document(b"1", {})}
    compared(len(many))


def test_conditions_are_kept(cache: Any) -> None:
    assert cache.add("a", b"1") is True and cache.add("a", b"2") is False
    assert cache.replace("b", b"1") is False and cache.replace("a", b"2") is True
    value, cas = cache.gets("a")
    assert value == b"2" and cache.cas("a", b"3", cas) is True and cache.cas("a", b"4", cas) is False
    assert cache.cas("nobody", b"4", cas) is None
    assert cache.append("a", b"!") and cache.prepend("a", b"?") and cache.get("a") == b"?3!"
    assert cache.delete("a") is True and cache.delete("a") is False


def test_counters_and_expiries(cache: Any) -> None:
    cache.set("n", b"10")
    assert cache.incr("n", 5) == 15 and cache.decr("n", 20) == 0 and cache.incr("nobody", 1) is None
    cache.set("word", b"x")
    with pytest.raises(exceptions.MemcacheClientError, match="non-numeric"):
        cache.incr("word", 1)
    assert cache.touch("n", 60) is True and cache.touch("nobody", 60) is False
    assert cache.set("gone", b"x", expire=-1) and cache.get("gone") is None


def test_the_server_tells_about_itself(cache: Any) -> None:
    assert cache.version().startswith(b"7.") and cache.stats()[b"curr_items"] == 0
    cache.set("a", b"1", noreply=True)
    assert cache.get("a") == b"1" and cache.flush_all() and cache.get("a") is None


def test_what_is_too_large_is_an_error_and_the_connection_lives(cache: Any) -> None:
    with pytest.raises(exceptions.MemcacheServerError, match="too large"):
        cache.set("a", bytes((20 << 20) + 1))
    assert cache.set("a", bytes(20 << 20)) and len(cache.get("a")) == 20 << 20


def test_a_client_of_change_streams_finds_what_was_stored_by_text(node: Node, cache: Any) -> None:
    cache.set("apple", b'{"colour":"green"}', flags=7)
    with client.connect(node.url) as connected:
        assert connected.get("apple").value == b'{"colour":"green"}'
        connected.set("pear", b"yellow")
    assert cache.get("pear") == b"yellow"


def test_what_was_stored_is_there_after_the_node_was_killed() -> None:
    with testing.node(vbuckets=4) as node:
        with contextlib.closing(pymemcache.Client((node.host, node.port), timeout=120, default_noreply=False)) as cache:
            assert cache.set("a", b"1") and cache.incr("a", 41) == 42
            node.kill()
        node.restart()
        with contextlib.closing(pymemcache.Client((node.host, node.port), timeout=120)) as cache:
            assert cache.get("a") == b"42"


def test_users_log_in_by_the_first_set(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.touch(0o600)
    users.write_text("ann:secret\n")
    with testing.node(vbuckets=4, users_file=users) as node:
        for said, known in (("ann secret", True), ("ann wrong", False)):
            with contextlib.closing(pymemcache.Client((node.host, node.port), timeout=120)) as cache:
                if known:
                    assert cache.set("login", said, noreply=False) and cache.set("a", b"1", noreply=False)
                    assert cache.get("a") == b"1"
                else:
                    with pytest.raises(exceptions.MemcacheClientError, match="authentication failure"):
                        cache.set("login", said, noreply=False)
                    with pytest.raises(exceptions.MemcacheClientError, match="unauthenticated"):
                        cache.get("a")


@pytest.mark.parametrize(
    "is_binary",
    [
        pytest.param(False, id="text", marks=pytest.mark.program(*LIBMEMCACHED, "documents, CAS, counters, by text")),
        pytest.param(True, id="binary", marks=pytest.mark.program(*LIBMEMCACHED, "documents, CAS, counters, binary")),
    ],
)
def test_pylibmc_does_the_same_in_both_protocols(
    node: Node, cache: Any, is_binary: bool, compared: Callable[[int], None]
) -> None:
    pylibmc = pytest.importorskip("pylibmc")  # there are no wheels for every platform
    other = pylibmc.Client([f"{node.host}:{node.port}"], binary=is_binary, behaviors={"cas": True})
    assert other.set("a", "text") and other.get("a") == "text"
    # libmemcached's binary side knows no vbuckets: all that it stores is in the first one.
    assert cache.get("a") == (None if is_binary else b"text")
    assert other.set_multi({f"k{each}": each for each in range(300)}) == []
    assert other.get_multi([f"k{each}" for each in range(301)]) == {f"k{each}": each for each in range(300)}
    held = {(DEFAULT, f"k{each}"): b"%d" % each for each in range(300)} | {(DEFAULT, "a"): b"text"}
    assert {place: each.body for place, each in observed.documents(node).items()} == held
    compared(len(held))
    assert not other.add("a", "other") and other.append("a", "!") and other.get("a") == "text!"
    value, cas = other.gets("k1")
    assert value == 1 and other.cas("k1", 2, cas) and not other.cas("k1", 3, cas)
    assert other.incr("k2", 40) == 42 and other.decr("k2") == 41
    assert other.touch("a", 60) and other.delete("a") and not other.delete("a")
    ((_, told),) = other.get_stats()
    assert int(told["curr_items"] if "curr_items" in told else told[b"curr_items"]) == 300
    assert other.flush_all() and other.get("k1") is None


MECHANISMS = next(Path("/usr/lib").glob("*/sasl2/libplain.so"), None)
LOGGED_IN = """
import sys, pylibmc
client = pylibmc.Client([sys.argv[1]], binary=True, username="ann", password=sys.argv[2])
print(client.set("a", "1"), client.get("a"))
"""


@pytest.mark.skipif(MECHANISMS is None, reason="the mechanisms of SASL: apt-get install libsasl2-modules")
@pytest.mark.program(*LIBMEMCACHED, "login by SASL, binary")
def test_pylibmc_logs_in_where_its_library_finds_the_mechanisms_of_sasl(tmp_path: Path) -> None:
    pytest.importorskip("pylibmc")
    users = tmp_path / "users"
    users.touch(0o600)
    users.write_text("ann:secret\n")
    environment = os.environ | {"SASL_PATH": str(MECHANISMS and MECHANISMS.parent)}
    with testing.node(vbuckets=4, users_file=users) as node:

        def shown(password: str) -> str:
            command = [sys.executable, "-c", LOGGED_IN, node.address, password]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
            return done.stdout + done.stderr

        assert shown("secret") == "True 1\n"
        assert "AUTHENTICATION FAILURE" in shown("wrong")
