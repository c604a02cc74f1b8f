"""Caches that are real: a node, which speaks memcached's protocol, and a Redis server."""

from __future__ import annotations

import shutil
import socket

import pytest
import redis

from headwater.errors import ConnectionLost, OptionError
from headwater.pipelines.caches import CacheRefused, chunks, expanded, open_cache, template
from headwater.testing.node import node
from headwater.wire.opcodes import Opcode
from tests.pipelines.memcached_server import plain_memcached, real_memcached
from tests.pipelines.redis_server import redis_server


def test_a_bucket_is_a_cache_and_what_is_not_there_is_as_good_as_deleted() -> None:
    with node(vbuckets=4) as cache, cache.client() as client:
        client.set_many((f"k{i}", "v") for i in range(10))
        opened = open_cache(cache.url)
        assert opened.delete([b"k1", b"k2", b"never", b"k" * 251]) == 2
        assert opened.delete([b"k1", b"k2", b"never"]) == 0
        assert set(client.get_many(f"k{i}" for i in range(10))) == {b"k%d" % i for i in (0, 3, 4, 5, 6, 7, 8, 9)}
        opened.close()


def test_a_memcached_is_asked_without_a_cluster_map() -> None:
    with node(vbuckets=1) as cache, cache.client() as client:
        client.set("a", "1")
        opened = open_cache(f"memcached://{cache.address}")
        assert opened.delete([b"a", b"b"]) == 1
        assert client.get_many(["a"]) == {}
        opened.close()


def test_a_memcached_is_sent_nothing_that_it_can_not_answer() -> None:
    """One of 1.6 loses its place at a command that it does not know and that has a body: no answer comes any more."""
    with plain_memcached() as (address, asked):
        opened = open_cache(f"memcached://{address}")
        assert opened.delete([b"a", b"b"]) == 2
        opened.close()
    assert set(asked) <= {Opcode.GET_CLUSTER_CONFIG, Opcode.DELETE, Opcode.DELETEQ, Opcode.NOOP}


@pytest.mark.interop
@pytest.mark.skipif(shutil.which("memcached") is None, reason="no memcached here: apt install memcached")
def test_a_real_memcached_is_told() -> None:
    with real_memcached() as port, socket.create_connection(("127.0.0.1", port)) as server:
        answers = server.makefile("rb")
        for number in range(100):
            server.sendall(b"set k%d 0 0 1\r\nv\r\n" % number)
            assert answers.readline() == b"STORED\r\n"
        opened = open_cache(f"memcached://127.0.0.1:{port}")
        assert opened.delete([b"never", b"k" * 251, *(b"k%d" % number for number in range(1, 200))]) == 99
        opened.close()
        server.sendall(b"get k0 k1\r\n")
        assert [answers.readline() for _ in range(3)] == [b"VALUE k0 0 1\r\n", b"v\r\n", b"END\r\n"]


@pytest.mark.interop
def test_redis_is_told_as_well() -> None:
    with redis_server() as url:
        server = redis.Redis.from_url(url)
        server.mset({f"k{i}": "v" for i in range(2000)})
        opened = open_cache(url)
        assert opened.delete([b"k%d" % i for i in range(1, 3000)]) == 1999
        assert server.keys() == [b"k0"]
        opened.close()
        server.close()


@pytest.mark.interop
def test_a_redis_that_wants_a_password_says_so_and_is_not_asked_again_and_again() -> None:
    with redis_server("--requirepass", "secret") as url:
        with pytest.raises(CacheRefused, match="authenticate") as refused:
            open_cache(url)
        assert "secret" not in str(refused.value)
        open_cache(url.replace("redis://", "redis://:secret@")).close()


def test_nobody_there_is_a_lost_connection() -> None:
    for url in ("redis://127.0.0.1:1/0", "memcached://127.0.0.1:1"):
        with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1"):
            open_cache(url)


@pytest.mark.parametrize("url", ["http://a", "a:11211", "memcached://"])
def test_a_cache_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(OptionError, match="memcached://"):
        open_cache(url)


def test_templates_make_cache_keys() -> None:
    templates = [template("user:{key}"), template("{key}:page")]
    assert list(expanded([b"a", b"\xff"], templates)) == [b"user:a", b"a:page", b"user:\xff", b"\xff:page"]
    for wrong in ("user", "{key}{key}"):
        with pytest.raises(OptionError, match="in one place"):
            template(wrong)


def test_chunks_are_at_most_so_long() -> None:
    assert [len(chunk) for chunk in chunks((b"k" for _ in range(5)), 2)] == [2, 2, 1]
