"""Small commands: NOOP, VERSION, VERBOSITY, QUIT, FLUSH, traffic and persistence switches (kv.md 1.6, 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.node.kv.command import Answer, Needs, NoRoom, Part, Refused, Reply, command
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.kv.session import KvSession

VERSION_TEXT = b"7.6.0-0000-headwater"
"""Digits first, and at least 5.5, or clients leave out features or refuse to talk (interop.md 4, rule 4)."""


@command(Opcode.NOOP, needs=Needs.NOTHING)
def noop(session: KvSession, frame: Frame) -> Reply:
    """Empty both ways."""
    return Reply()


@command(Opcode.VERSION, needs=Needs.NOTHING)
def version(session: KvSession, frame: Frame) -> Reply:
    """The version text."""
    return Reply(value=VERSION_TEXT)


@command(Opcode.VERBOSITY, extras=(4,), needs=Needs.LOGIN)
def verbosity(session: KvSession, frame: Frame) -> Reply:
    """Accepted; the log level is a matter of the node's settings."""
    return Reply()


@command(Opcode.QUIT, Opcode.QUITQ, needs=Needs.NOTHING)
def quit_(session: KvSession, frame: Frame) -> Answer:
    """QUIT: answer, then close. QUITQ: close."""
    session.reply(frame, Reply())
    session.connection.finish()
    return None


@command(Opcode.FLUSH, Opcode.FLUSHQ, extras=(0, 4), writes=True)
def flush(session: KvSession, frame: Frame) -> Answer:
    """Delete every document of every active vbucket, as deletions, so that streams see them; at once or after a delay.

    Retired in the modern server (0x83); kept here for memcached clients. The delay is relative or absolute like an
    expiry.
    """
    from headwater.node.kv.documents import absolute_expiry  # noqa: PLC0415 - documents registers its own commands

    bucket = session.store_bucket
    bucket.counters["cmd_flush"] += 1
    at = absolute_expiry(int.from_bytes(frame.extras, "big"), bucket.now())
    if at > bucket.now():
        session.server.flush_later(at)
        return Reply()
    if not bucket.flush():
        session.wrote()
        raise NoRoom
    session.wrote()
    return Reply()


@command(Opcode.ENABLE_TRAFFIC, Opcode.DISABLE_TRAFFIC)
def traffic(session: KvSession, frame: Frame) -> Reply:
    """While disabled document commands answer ETMPFAIL."""
    session.store_bucket.traffic_disabled = frame.opcode == Opcode.DISABLE_TRAFFIC
    return Reply()


@command(Opcode.START_PERSISTENCE, needs=Needs.BUCKET)
def start_persistence(session: KvSession, frame: Frame) -> Reply:
    """Persistence never stops here."""
    return Reply()


@command(Opcode.SET_PARAM, extras=(4,), key=Part.REQUIRED, value=Part.REQUIRED)
def set_param(session: KvSession, frame: Frame) -> Answer:
    """There are no parameters of these kinds."""
    raise Refused(Status.EINVAL, "no such parameter")
