"""Pages about the whole node, at the address that workers share.

The worker that has the client's connection requests the page from each other worker, over that worker's unix socket,
and combines the answers: metrics get the label `worker`; the readiness is that of all workers together. A worker that
does not answer is reported as away.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from headwater.node.connections.worker_call import RECEIVE_BYTES, number_of, own_number
from headwater.node.rest.made import Made
from headwater.wire.header import HEADER_BYTES, Frame, Magic, frame_bytes
from headwater.wire.opcodes import Opcode

if TYPE_CHECKING:
    from headwater.wire.address import Address

GATHERED: Final = frozenset({"/metrics", "/readyz"})
"""The paths of these pages."""
ANSWER_SECONDS_MAX: Final = 2.0
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?( .*)")
_UP: Final = "headwater_worker_up"


async def with_others(
    loop: asyncio.AbstractEventLoop, path: str, request: bytes, own: Made, relays: Mapping[Address, str]
) -> Made:
    """Return a page that combines this worker's with those of the other workers.

    Args:
        loop: the event loop.
        path: the page's path, one of GATHERED.
        request: the `question` that requests the page from a worker.
        own: this worker's page.
        relays: the path of each other worker's socket.
    """
    questions = [_page_of(loop, relay, request) for relay in relays.values()]
    answers = dict(zip(map(number_of, relays.values()), await asyncio.gather(*questions), strict=True))
    pages = dict(sorted({own_number(relays.values()): own, **answers}.items()))
    return _metrics(pages) if path == "/metrics" else _readiness(pages)


def question(path: str, user: str, peer: str) -> bytes:
    """Return the frame that requests a page from another worker, for a user and a client at `peer`."""
    who = {"peer": peer, "user": user, "page": path}
    return Frame(Magic.CLIENT_REQUEST, Opcode.HELLO, value=json.dumps(who).encode()).encode()


def answer(page: Made | None) -> bytes:
    """Return the frame in which a worker sends the requested page; without a page (None) its status is 404."""
    body, status, kind = page or Made(b"", 404)
    head = json.dumps({"status": status, "type": kind}).encode()
    return Frame(Magic.CLIENT_RESPONSE, Opcode.HELLO, head, value=body).encode()


async def _page_of(loop: asyncio.AbstractEventLoop, relay: str, request: bytes) -> Made | None:
    """Return a worker's page; None if the worker does not send it in time."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as sock:
        sock.setblocking(False)
        received = bytearray()
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                sock.connect(relay)
                await loop.sock_sendall(sock, request)
                while len(received) < HEADER_BYTES or len(received) < frame_bytes(received):
                    if not (data := await loop.sock_recv(sock, RECEIVE_BYTES)):
                        return None
                    received += data
        except (OSError, TimeoutError):
            return None
    frame = Frame.decode(bytes(received))
    if not frame.key:  # a refusal: the worker can't take the call
        return None
    head = json.loads(frame.key)
    return Made(frame.value, head["status"], head["type"])


def _metrics(pages: Mapping[int, Made | None]) -> Made:
    families: dict[str, list[str]] = {}
    is_up = [f"# HELP {_UP} Whether a worker has answered this scrape.", f"# TYPE {_UP} gauge"]
    kind, refusal = "", None
    for number, page in pages.items():
        is_there = page is not None and page.status == 200
        is_up.append(f'{_UP}{{worker="{number}"}} {float(is_there)}')
        if page is not None and is_there:
            kind = page.content_type
            _add(families, page.body.decode(), number)
        refusal = refusal or page
    if not kind and refusal is not None:  # no worker has metrics, so all have refused
        return refusal
    lines = [line for family in families.values() for line in family]
    return Made("\n".join([*lines, *is_up, ""]).encode(), content_type=kind)


def _add(families: dict[str, list[str]], text: str, number: int) -> None:
    """Add the series of a worker's page to `families`, with the worker's number as a label.

    Args:
        families: the lines about each metric, by the line with its HELP.
        text: the worker's page.
        number: the worker's number.
    """
    family, is_new = list[str](), False
    for line in text.splitlines():
        if line.startswith("# HELP "):
            is_new = line not in families
            family = families.setdefault(line, [line])
        elif line.startswith("#"):
            if is_new:
                family.append(line)
        elif match := _SAMPLE.fullmatch(line):
            name, labels, value = match.groups()
            family.append(f'{name}{{worker="{number}"{"," + labels if labels else ""}}}{value}')


def _readiness(pages: Mapping[int, Made | None]) -> Made:
    """Return the page about the readiness of all workers together.

    Numbers are summed, and a flag is True if it is True for any worker. The node is ready if each worker has answered
    that it is ready.
    """
    state: dict[str, Any] = {}
    for page in pages.values():
        for name, value in json.loads(page.body if page is not None else b"{}").items():
            state[name] = state.get(name, False) or value if isinstance(value, bool) else state.get(name, 0) + value
    away = [number for number, page in pages.items() if page is None]
    ready = not away and all(page is not None and page.status == 200 for page in pages.values())
    return Made(json.dumps({**state, "ready": ready, "workers_away": away}).encode(), 200 if ready else 503)
