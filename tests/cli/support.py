"""Fixtures of the tests of commands."""

from typing import Protocol


class Run(Protocol):
    def __call__(self, *arguments: str, stdin: bytes | None = None) -> tuple[int, str, str]: ...
