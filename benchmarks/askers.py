"""Compiled clients that ask one request at a time: in Python they would be slower than the server that they measure.

Each client sends its request again as soon as the whole answer has come. One thread waits for the answers of all
clients by poll(2).
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numba import types

FRAME_BYTES_MAX = 4096
_ANSWERS_MAX = 1 << 22

_poll = types.ExternalFunction("poll", types.intc(types.voidptr, types.uintp, types.intc))
_send = types.ExternalFunction("send", types.intp(types.intc, types.voidptr, types.uintp, types.intc))
_recv = types.ExternalFunction("recv", types.intp(types.intc, types.voidptr, types.uintp, types.intc))
_clock = types.ExternalFunction("clock_gettime", types.intc(types.intc, types.voidptr))

_POLLIN = 1 << 32  # of `struct pollfd` as one number: descriptor, events, revents
_MONOTONIC = 1
_PATIENCE_MS = 60_000  # a busy machine may leave a server without a processor for seconds


@numba.njit  # type: ignore[misc]
def _now(clock: Any) -> Any:
    _clock(_MONOTONIC, clock.ctypes)
    return clock[0] * 1_000_000_000 + clock[1]


@numba.njit(nogil=True)  # type: ignore[misc]
def _ask(descriptors: Any, requests: Any, lengths: Any, answer_bytes: Any, nanoseconds: Any, taken: Any) -> Any:  # noqa: PLR0917 - a kernel
    """Let each client send its request again and again for some nanoseconds.

    Returns: the number of answers, whose times in nanoseconds are in `taken`; -1 after an error, or if no answer came
    for a minute.
    """
    count, answers = len(descriptors), 0
    polled = np.zeros(count, np.int64)
    begun, got = np.zeros(count, np.int64), np.zeros(count, np.int64)
    clock, room = np.zeros(2, np.int64), np.zeros(FRAME_BYTES_MAX, np.uint8)
    for each in range(count):
        polled[each] = np.int64(descriptors[each]) | _POLLIN
        begun[each] = _now(clock)
        if _send(descriptors[each], requests[each].ctypes, lengths[each], 0) != lengths[each]:
            return -1
    end = _now(clock) + nanoseconds
    while answers < len(taken):
        if _poll(polled.ctypes, np.uintp(count), _PATIENCE_MS) < 1:
            return -1
        for each in range(count):
            if polled[each] >> 48 == 0:
                continue
            size = _recv(descriptors[each], room.ctypes, np.uintp(FRAME_BYTES_MAX), 0)
            if size < 1 or (got[each] == 0 and (room[0] != 0x81 or room[6] != 0 or room[7] != 0)):
                return -1
            got[each] += size
            if got[each] < answer_bytes:
                continue
            now = _now(clock)
            if answers == len(taken):
                break
            taken[answers], got[each] = now - begun[each], 0
            answers += 1
            begun[each] = now
            if now < end and _send(descriptors[each], requests[each].ctypes, lengths[each], 0) != lengths[each]:
                return -1
        if _now(clock) >= end:
            break
    return answers


def round_trips(port: int, requests: Sequence[bytes], answer_bytes: int, seconds: float) -> tuple[float, Any]:
    """Let each of some clients send its request again and again for some seconds; every answer must say success.

    Args:
        port: of the server, on 127.0.0.1.
        requests: one of each client: whole frames, FRAME_BYTES_MAX bytes at most.
        answer_bytes: the length of each answer.

    Returns: the answers per second, and an array of the microseconds that each took.
    """
    frames = np.zeros((len(requests), FRAME_BYTES_MAX), np.uint8)
    lengths = np.array([len(request) for request in requests], np.int64)
    for row, request in zip(frames, requests, strict=True):
        row[: len(request)] = np.frombuffer(request, np.uint8)
    socks = [socket.create_connection(("127.0.0.1", port)) for _ in requests]
    taken = np.zeros(_ANSWERS_MAX, np.int64)
    try:
        for sock in socks:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        descriptors = np.array([sock.fileno() for sock in socks], np.int32)
        count = _ask(descriptors, frames, lengths, answer_bytes, int(seconds * 1e9), taken)
    finally:
        for sock in socks:
            sock.close()
    if count < 1:
        raise AssertionError("a client lost its connection, was refused, or waited for a minute")
    return count / seconds, taken[:count] / 1000
