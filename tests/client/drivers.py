"""One surface over both clients, so that one suite runs over blocking and asyncio alike."""

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Any

from headwater.client import aio, blocking


class Blocking:
    """The blocking client as it is."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def connect(self, *arguments: Any, **options: Any) -> Any:
        self.made.append(blocking.connect(*arguments, **options))
        return self.made[-1]

    def close(self) -> None:
        for client in self.made:
            client.close()


class Feed:
    """An asynchronous feed, stepped from outside its loop."""

    def __init__(self, runner: asyncio.Runner, feed: Any) -> None:
        self._runner, self._feed = runner, feed

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        async def step() -> Any:
            return await anext(self._feed, None)

        event = self._runner.run(step())
        if event is None:
            raise StopIteration
        return event

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def positions(self) -> Any:
        return self._feed.positions

    def close(self) -> None:
        async def close() -> None:
            self._feed.close()

        self._runner.run(close())


async def awaited(asked: Awaitable[Any]) -> Any:
    """A runner takes coroutines, not what is merely awaitable."""
    return await asked


class Wrapped:
    """An asynchronous client whose methods block."""

    def __init__(self, runner: asyncio.Runner, client: Any) -> None:
        self._runner, self._client = runner, client

    @property
    def map(self) -> Any:
        return self._client.map

    def vbucket_of(self, key: str) -> int:
        return self._client.vbucket_of(key)

    def collection(self, name: str) -> Any:
        return Wrapped(self._runner, self._client.collection(name))

    def scope(self, name: str) -> Any:
        return Wrapped(self._runner, self._client.scope(name))

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            result = self._runner.run(awaited(getattr(self._client, name)(*arguments, **options)))
            return Feed(self._runner, result) if name in ("changes", "batches") else result

        return call


class Aio:
    """The asyncio client, with a loop of its own."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.made: list[Any] = []

    def connect(self, *arguments: Any, **options: Any) -> Any:
        self.made.append(self.runner.run(awaited(aio.connect(*arguments, **options))))
        return Wrapped(self.runner, self.made[-1])

    def close(self) -> None:
        for client in self.made:
            self.runner.run(client.close())
        self.runner.close()
