"""The conversation from the first byte to a selected bucket, and the small commands. Source: specification, kv.md 1."""

from __future__ import annotations

from typing import Annotated

from headwater.wire.codec import NUMBERS, RowsCodec
from headwater.wire.header import Magic
from headwater.wire.layout import OPTIONAL, REQUIRED, VALUE, Answer, Done, Request, Response, about, i64, u16, u32
from headwater.wire.opcodes import Opcode, ServerOpcode
from headwater.wire.privilege import ADMINISTER, LOGIN, MONITOR, NONE
from headwater.wire.status import Status

__all__ = ["ClustermapChange", "ClustermapChangeOld", "ClustermapChangeResponse", "CreateBucket", "DeleteBucket"]
__all__ += ["GetClusterConfig", "GetClusterConfigResponse", "GetErrorMap", "GetErrorMapResponse", "Hello"]
__all__ += ["HelloResponse", "ListBuckets", "ListBucketsResponse", "Noop", "Quit", "SaslAuth", "SaslContinue"]
__all__ += ["SaslListMechs", "SaslListMechsResponse", "SaslResponse", "SaslStep", "SelectBucket", "SetClusterConfig"]
__all__ += ["Stat", "StatResponse", "Verbosity", "Version", "VersionResponse"]


# --------------------------------------------------------------------------- bootstrap

Features = Annotated[list[int], RowsCodec((("feature", NUMBERS[16]),))]


class HelloResponse(Answer):
    """The features switched on."""

    features: Features = about("feature codes granted", place=VALUE)


class Hello(Request, opcode=Opcode.HELLO, privilege=NONE, key=OPTIONAL, answer=HelloResponse):
    """Asks for features; the key names the client. Switches off all features granted before."""

    features: Features = about("feature codes asked for", place=VALUE)


class SaslListMechsResponse(Answer, value=OPTIONAL):
    """The mechanisms, separated by blanks, strongest first."""


class SaslListMechs(Request, opcode=Opcode.SASL_LIST_MECHS, privilege=NONE, answer=SaslListMechsResponse):
    """Asks for the mechanisms."""


class SaslResponse(Answer, value=OPTIONAL):
    """The client is authenticated; after SaslStep the value is the server's last message."""


class SaslContinue(Answer, status=Status.AUTH_CONTINUE, value=OPTIONAL):
    """The value is a challenge; the client answers it with SaslStep."""


class SaslAuth(
    Request, opcode=Opcode.SASL_AUTH, privilege=NONE, key=REQUIRED, value=OPTIONAL, answer=(SaslResponse, SaslContinue)
):
    """Begins to authenticate; the key is the mechanism, the value its first message."""


class SaslStep(SaslAuth, opcode=Opcode.SASL_STEP):
    """Continues the authentication."""


class SelectBucket(Request, opcode=Opcode.SELECT_BUCKET, privilege=LOGIN, key=OPTIONAL, answer=Done):
    """Selects the bucket named by the key; an empty key deselects."""


class ListBucketsResponse(Answer, value=OPTIONAL):
    """The names of the buckets, separated by blanks."""


class ListBuckets(Request, opcode=Opcode.LIST_BUCKETS, privilege=LOGIN, answer=ListBucketsResponse):
    """Asks for the buckets."""


class CreateBucket(
    Request,
    opcode=Opcode.CREATE_BUCKET,
    privilege=ADMINISTER,
    key=REQUIRED,
    value=OPTIONAL,
    answer=Done,
):
    """Creates a bucket; the value is module, a zero byte, configuration."""


class DeleteBucket(
    Request,
    opcode=Opcode.DELETE_BUCKET,
    privilege=ADMINISTER,
    key=REQUIRED,
    value=OPTIONAL,
    answer=Done,
):
    """Deletes a bucket; the value may be "force=true"."""


class GetClusterConfigResponse(Answer, value=OPTIONAL):
    """The map as JSON; empty if the client's map is the current one."""


class GetClusterConfig(
    Request, opcode=Opcode.GET_CLUSTER_CONFIG, privilege=LOGIN, extras_bytes=(0, 16), answer=GetClusterConfigResponse
):
    """Asks for the cluster map."""

    epoch: i64 | None = about("epoch of the map the client has", default=None)
    revision: i64 | None = about("revision of it", default=None)


class SetClusterConfig(
    Request, opcode=Opcode.SET_CLUSTER_CONFIG, privilege=ADMINISTER, key=OPTIONAL, value=REQUIRED, answer=Done
):
    """Sends a node the map of the bucket named by the key."""

    epoch: i64 = about("epoch of the map")
    revision: i64 = about("revision of the map")


class ClustermapChangeResponse(
    Response, opcode=ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION, magic=Magic.SERVER_RESPONSE
):
    """The client has received the map; optional, ignored by the server."""


class ClustermapChange(
    Request,
    opcode=ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION,
    magic=Magic.SERVER_REQUEST,
    key=OPTIONAL,
    value=OPTIONAL,
    answer=ClustermapChangeResponse,
):
    """The server announces a new map (in the value, unless the brief form was requested)."""

    epoch: i64 = about("epoch of the map")
    revision: i64 = about("revision of the map")


class ClustermapChangeOld(
    Request,
    opcode=ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION,
    magic=Magic.SERVER_REQUEST,
    key=OPTIONAL,
    value=OPTIONAL,
    answer=ClustermapChangeResponse,
):
    """The server announces a new map, in the form of old servers."""

    revision: u32 = about("revision of the map")


class GetErrorMapResponse(Answer, value=REQUIRED):
    """The meanings of the statuses, as JSON."""


class GetErrorMap(Request, opcode=Opcode.GET_ERROR_MAP, privilege=NONE, answer=GetErrorMapResponse):
    """Asks for the meaning of the statuses."""

    version: u16 = about("highest version understood", place=VALUE)


# --------------------------------------------------------------------------- small ones


class Noop(Request, opcode=Opcode.NOOP, privilege=NONE, answer=Done):
    """Asks for an answer; TAP producers send it when idle."""


class VersionResponse(Answer, value=REQUIRED):
    """The version as text."""


class Version(Request, opcode=Opcode.VERSION, privilege=NONE, answer=VersionResponse):
    """Asks for the server's version."""


class Verbosity(Request, opcode=Opcode.VERBOSITY, privilege=LOGIN, answer=Done):
    """Sets the amount that the server logs."""

    level: u32 = about("0 and up")


class Quit(Request, opcode=Opcode.QUIT, privilege=NONE, quiet=Opcode.QUITQ, answer=Done):
    """Asks the server to answer, then close."""


class StatResponse(Answer, key=OPTIONAL, value=OPTIONAL):
    """One statistic; the last answer has neither key nor value."""


class Stat(Request, opcode=Opcode.STAT, privilege=MONITOR, key=OPTIONAL, value=OPTIONAL, answer=StatResponse):
    """Asks for statistics; the key is the group and its arguments."""
