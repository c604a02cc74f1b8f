"""The caches that hold copies of documents: memcached or a bucket (binary protocol), and Redis. Only DELETE is used.

Deleting a missing key is no error, so every deletion may be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from headwater.errors import ConnectionLost, HeadwaterError, KeyNotFound, OptionError, StatusError

KEYS_PER_CALL = 20_000
KEYS_PER_DEL = 500
PLACE, SCOPE, COLLECTION = b"{key}", b"{scope}", b"{collection}"


class CacheRefused(HeadwaterError):  # noqa: N818 -- says what happened
    """A cache refused a deletion; `problem` is its answer."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


class Cache(Protocol):
    """A connected cache."""

    def delete(self, keys: Sequence[bytes]) -> int:
        """Delete these keys; return the number of those that were there."""

    def close(self) -> None:
        """Close the connection."""


def open_cache(url: str, user: str | None = None, password: str | None = None) -> Cache:
    """Connect to a cache.

    Args:
        url: `memcached://host[:port][,host...]`, `couchbase://host[:port]/bucket`, `redis://[:password@]host[:port][/db]`
            or `rediss://`.
        user, password: the login for memcached with SASL, or for the bucket; Redis has it in its url.

    Raises:
        OptionError: no such kind of cache, or the extra `redis` is not installed.
        TransportError: no cache answers.
    """
    scheme = urlsplit(url).scheme
    if scheme in ("redis", "rediss"):
        return Redis(url)
    if scheme in ("memcached", "couchbase", "couchbases"):
        return Memcached(url, user, password)
    raise OptionError("cache", url, "an address such as memcached://host:11211, redis://host:6379/0 or couchbase://...")


class Memcached:
    """One or more servers that speak memcached's binary protocol; each gets every DELETE.

    The application's hashing, which is unknown here, decides which of several servers has a key; a server without it
    loses nothing. For a bucket, the cluster map leads to the right node instead.
    """

    def __init__(self, url: str, user: str | None, password: str | None) -> None:
        from headwater import client

        bucket = url.startswith(("couchbase:", "couchbases:"))
        hosts = [url] if bucket else _servers(url)
        # A plain memcached knows neither HELLO nor maps: all of its keys are in one vbucket.
        plain: dict[str, Any] = {} if bucket else {"vbuckets": 1, "hello": False}
        self._clients = [client.connect(host, user, password, **plain) for host in hosts]

    def delete(self, keys: Sequence[bytes]) -> int:
        """Delete these keys everywhere; return the number of those that were there."""
        from headwater.client import Write

        found_count = 0
        for client in self._clients:
            errors = client.write_many(Write(key, None) for key in keys)
            for error in errors.values():
                if not isinstance(error, KeyNotFound | OptionError):  # a key too long for a cache is in no cache
                    raise error if isinstance(error, StatusError) else CacheRefused(str(error))
            found_count += len(keys) - len(errors)
        return found_count

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()


def _servers(url: str) -> list[str]:
    hosts = [host for host in url.removeprefix("memcached://").rstrip("/").split(",") if host]
    if not hosts:
        raise OptionError("cache", url, "an address such as memcached://host:11211")
    return [f"couchbase://{host if ':' in host.rpartition(']')[2] else host + ':11211'}" for host in hosts]


class Redis:
    """A Redis server (not a Redis Cluster, where a DEL of several keys is refused)."""

    def __init__(self, url: str) -> None:
        try:
            import redis
        except ModuleNotFoundError:
            raise OptionError("cache", url, "possible without redis: pip install 'redis>=5'") from None
        self._errors: Any = redis.exceptions
        parts = urlsplit(url)
        self._peer = f"{parts.hostname}:{parts.port or 6379}"
        try:
            self._redis: Any = redis.Redis.from_url(url, socket_timeout=10.0, socket_connect_timeout=5.0)
        except ValueError:
            raise OptionError("cache", url, "an address such as redis://host:6379/0") from None
        self._do(self._redis.ping)

    def delete(self, keys: Sequence[bytes]) -> int:
        """Delete these keys; return the number of those that were there."""
        found_count = 0
        for chunk in chunks(keys, KEYS_PER_DEL):
            found_count += int(self._do(lambda chunk=chunk: self._redis.delete(*chunk)))
        return found_count

    def _do(self, ask: Any) -> Any:
        try:
            return ask()
        except (self._errors.ConnectionError, self._errors.TimeoutError) as error:
            # redis-py counts a refused password among lost connections; another try does not help there.
            if isinstance(error, self._errors.AuthenticationError):
                raise CacheRefused(f"{self._peer}: {error}") from None
            raise ConnectionLost(self._peer, str(error)) from None
        except self._errors.RedisError as error:
            raise CacheRefused(f"{self._peer}: {error}") from None

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()


def address(url: str) -> str:
    """Return the address of a cache, without user and options."""
    parts = urlsplit(url)
    number = parse_qs(parts.query).get("db", [""])[0]
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}" + f"/{number}" * bool(number)


def template(text: str) -> bytes:
    """Return a template of cache keys as bytes.

    Raises:
        OptionError: it does not contain {key} exactly once: every change would delete the same key.
    """
    data = text.encode()
    if data.count(PLACE) != 1:
        raise OptionError("template", text, 'text with {key} in one place, such as "user:{key}:page"')
    return data


def names_collections(templates: Iterable[bytes]) -> bool:
    """Return True if a template has {scope} or {collection} in it."""
    return any(SCOPE in template or COLLECTION in template for template in templates)


def expanded(keys: Iterable[bytes], templates: Sequence[bytes], path: tuple[str, str] | None = None) -> Iterator[bytes]:
    """Yield the cache keys of these documents.

    Args:
        path: their scope and collection, for templates that name them; None without collections.
    """
    if path is not None:
        scope, collection = (name.encode() for name in path)
        templates = [template.replace(SCOPE, scope).replace(COLLECTION, collection) for template in templates]
    for key in keys:
        for template in templates:
            yield template.replace(PLACE, key)


def chunks(keys: Iterable[bytes], count: int) -> Iterator[list[bytes]]:
    """Yield lists of at most `count` keys."""
    remaining = iter(keys)
    while chunk := list(islice(remaining, count)):
        yield chunk
