"""Somebody else's DCP client, followed: a program in a process of its own that writes a line for each event.

    open ...                                          a stream (or the client) is ready
    mutation|deletion|expiration VBUCKET SEQNO KEY VALUE [COLLECTION]   key and value in base64, the id in hex
    collection|dropped VBUCKET ID NAME                a collection came, or went
    rollback VBUCKET SEQNO                            the client was told to go back, and does
    end|failure VBUCKET ...                           a stream ended, or could not be opened

It follows until its stdin is closed. `Follower` keeps what was said as histories, undoes what a rollback takes back,
and knows what the bucket looks like to that client.
"""

from __future__ import annotations

import base64
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from types import TracebackType

SECONDS_MAX = 120.0


def named(collection: int, key: str) -> str:
    """A document's name: its key, and before it the id of a collection that is not the default one."""
    return f"{collection:x}:{key}" if collection else key


class Follower:
    """A running client.

    Attributes: histories (vbucket -> (seqno, event, key, value) in the order told), counts (events by name), lines (the
    rest of what it said).
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self.histories: dict[int, list[tuple[int, str, str, bytes]]] = defaultdict(list)
        self.counts: Counter[str] = Counter()
        self.lines: list[str] = []
        self._killed = False
        self._errors = folder / "follower.log"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8"
            )
        self._queue: Queue[str | None] = Queue()
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            error.add_note(f"{dict(self.counts)}; last said {self.lines[-5:]}; stderr:\n{self.errors[-4000:]}")
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            status = self._process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._thread.join()
        self._process.stdout.close()
        assert error is not None or status == (-signal.SIGKILL if self._killed else 0), (
            f"the client ended with {status}:\n{self.errors[-4000:]}"
        )

    def kill(self) -> None:
        """SIGKILL, as a crash of the client would."""
        self._killed = True
        self._process.kill()

    @property
    def errors(self) -> str:
        """Return the text it wrote to stderr."""
        return self._errors.read_text("utf-8", "replace")

    def documents(self) -> dict[str, bytes]:
        """Return the bucket's documents, as far as this client received them."""
        found: dict[str, bytes] = {}
        for history in self.histories.values():
            for _, event, key, value in history:
                if event == "mutation":
                    found[key] = value
                else:
                    found.pop(key, None)
        return found

    def follow_until(self, reached: Callable[[], bool], *, poll: bool = False) -> None:
        """Take in what the client says until it is so; with `poll`, of something else than what the client says."""
        deadline = time.monotonic() + SECONDS_MAX
        while not reached():
            left = max(0.0, deadline - time.monotonic())
            try:
                line = self._queue.get(timeout=min(left, 0.2) if poll else left)
            except Empty:
                if poll and left:
                    continue
                raise AssertionError(f"not reached within {SECONDS_MAX:.0f} s") from None
            if line is None:
                raise AssertionError(f"the client ended with status {self._process.wait()}")
            self._take(line)
            while not self._queue.empty() and (more := self._queue.get()) is not None:
                self._take(more)

    def _take(self, line: str) -> None:
        event, *rest = line.split(" ")
        self.counts[event] += 1
        if event in ("mutation", "deletion", "expiration"):
            vbucket, seqno, key = int(rest[0]), int(rest[1]), base64.b64decode(rest[2]).decode()
            name = named(int(rest[4], 16), key) if len(rest) > 4 else key
            self.histories[vbucket].append((seqno, event, name, base64.b64decode(rest[3])))
            return
        if event == "dropped":
            gone = named(int(rest[1], 16), "")
            history = self.histories[int(rest[0])]
            self.histories[int(rest[0])] = [each for each in history if not each[2].startswith(gone)]
        self.lines.append(line)
        if event == "rollback":
            kept = [told for told in self.histories[int(rest[0])] if told[0] <= int(rest[1])]
            self.histories[int(rest[0])] = kept

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)
