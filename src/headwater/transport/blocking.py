"""Waits by blocking the thread: poll(2) for channels, the system's resolver for names."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from contextlib import closing

from headwater.transport.channel import SocketAddress
from headwater.transport.waiting import Ready, Resolve, Result, Steps

Clock = Callable[[], float]


def run(steps: Steps[Result], clock: Clock = time.monotonic) -> Result:
    """Run a step generator to its end and return its result; its errors pass through."""
    answer: object = None
    with closing(steps):
        while True:
            try:
                wait_ = steps.send(answer)
            except StopIteration as stop:
                result: Result = stop.value
                return result
            if isinstance(wait_, Resolve):
                answer = resolve(wait_)
            else:
                answer = None
                wait(wait_, clock)


def resolve(request: Resolve) -> list[SocketAddress] | OSError:
    """Look up a host; blocks as long as the system's resolver does."""
    try:
        entries = socket.getaddrinfo(request.host, request.port, type=socket.SOCK_STREAM)
    except OSError as error:
        return error
    except UnicodeError:
        return no_name()
    return [(family, address) for family, _, _, _, address in entries]


def no_name() -> OSError:
    """Return the error of an invalid host name: one of its parts is empty, too long or has invalid letters."""
    return socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def wait(ready: Ready, clock: Clock) -> None:
    """Wait until one of the channels can continue, or the deadline has passed."""
    poll = select.poll()
    for channel in ready.channels:
        if channel.fileno() < 0:
            return
        poll.register(channel.fileno(), select.POLLIN | (select.POLLOUT if channel.wants_to_write else 0))
    # Rounded up: waking a fraction of a millisecond early would mean going round without anything to do.
    poll.poll(None if ready.deadline is None else max(0.0, ready.deadline - clock()) * 1000 + 0.999)
