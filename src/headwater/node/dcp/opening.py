"""Turn a connection into a DCP connection.

DCP_OPEN replaces a connection's key-value session: by a `ProducerSession` (producer.py) if this node is to produce, by
a `ConsumerSession` (consumer.py) if it is to consume. All later bytes go to the new session, including the rest of the
received buffer. Source: dcp 1, 2.1.
"""

from __future__ import annotations

from dataclasses import replace
from time import monotonic_ns
from typing import TYPE_CHECKING

from headwater.errors import BadMessage
from headwater.node.dcp.consumer import ConsumerSession
from headwater.node.dcp.consumer_relay import opaques_from
from headwater.node.dcp.inbound import wants_versions
from headwater.node.dcp.producer import ProducerSession
from headwater.node.kv.command import passes
from headwater.node.refused import CommandRefused
from headwater.protocol.dcp.consumer import Consumer
from headwater.protocol.dcp.consumer_core import OPAQUES
from headwater.protocol.dcp.negotiation import ConsumerSettings
from headwater.protocol.dcp.opening import consumer_name_in, negotiated_by, read_open
from headwater.protocol.dcp.producer import CONSUMER_COMMANDS, Producer
from headwater.wire.dcp import OpenFlag
from headwater.wire.features import Feature
from headwater.wire.header import Frame
from headwater.wire.layout import Done
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.kv.api import Session


@passes(Opcode.DCP_OPEN, anywhere=True)
def open_session(session: Session, frame: Frame) -> None:
    """Handle DCP_OPEN: answer it, and replace the session by a producer's or a consumer's.

    Raises:
        CommandRefused: the request is not allowed or invalid, or its name belongs to another user, or to a newer
            connection.
    """
    if session.has(Feature.UNORDERED_EXECUTION):
        raise CommandRefused(Status.NOT_SUPPORTED, "DCP and UnorderedExecution exclude each other")
    try:
        request = read_open(frame)
    except BadMessage as bad:
        raise CommandRefused(bad.status, str(bad)) from None
    # Taking a name closes the connection that has it (dcp 2.1), so nobody may take the name of another user.
    older = session.server.dcp.sessions.get(request.key)
    if older is not None and not session.access.is_administrator and older.user != session.user:
        raise CommandRefused(Status.EACCESS, "a connection of another user has this name")
    if older is not None and 0 < session.named_at < older.named_at:  # relayed late by another worker
        raise CommandRefused(Status.KEY_EEXISTS, "a newer connection has this name")
    session.named_at = session.named_at or monotonic_ns()
    negotiated, now = negotiated_by(request, session.features), session.server.loop.time()
    negotiated.upr_states_as_printed = session.server.config.upr_states == "text"
    # The old session sends the answer, because from the next line on the new session handles the connection.
    session.reply(frame, Done())
    if request.flags & OpenFlag.PRODUCER:
        producer = Producer(negotiated, now)
        session.connection.session = ProducerSession(session, session.server.dcp, producer, request.flags, frame)
    else:
        name = consumer_name_in(request)
        settings = ConsumerSettings(
            deleted_user_xattrs=negotiated.deleted_user_xattrs,
            consumer_name=name,
            every_version=wants_versions(session.store_bucket, name),
        )
        if session.connection.is_inner:  # another worker keeps the account of the client's window, so each byte counts
            settings = replace(settings, window_bytes=1)
        is_shared = session.connection.is_inner or session.relays
        consumer = Consumer(negotiated, settings, now, opaques_from(session.first_opaque) if is_shared else OPAQUES)
        session.connection.session = ConsumerSession(session, session.server.dcp, consumer, opened=frame)


@passes(
    *sorted(CONSUMER_COMMANDS),
    Opcode.DCP_CLOSE_STREAM,
    Opcode.DCP_STREAM_REQ,
    Opcode.DCP_GET_FAILOVER_LOG,
    Opcode.DCP_BUFFER_ACKNOWLEDGEMENT,
    Opcode.DCP_CONTROL,
    Opcode.DCP_SEQNO_ACKNOWLEDGED,
    anywhere=True,
)
def before_open(session: Session, frame: Frame) -> None:
    """Refuse a DCP command on a connection that is not a DCP connection (dcp 1)."""
    if session.has(Feature.UNORDERED_EXECUTION):
        raise CommandRefused(Status.NOT_SUPPORTED, "DCP and UnorderedExecution exclude each other")
    raise CommandRefused(Status.EINVAL, f"opcode 0x{frame.opcode:02x} belongs on a DCP connection: send DCP_OPEN first")
