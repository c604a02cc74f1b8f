"""From the first byte to a selected bucket, and the small commands. Source: specification, kv.md 1."""

from __future__ import annotations

from typing import Annotated

from headwater.wire.codec import NUMBERS, Rows
from headwater.wire.header import Magic
from headwater.wire.layout import OPTIONAL, REQUIRED, VALUE, Request, Response, about, i64, u16, u32
from headwater.wire.opcodes import Opcode, ServerOpcode
from headwater.wire.status import Status

__all__ = ["ClustermapChange", "ClustermapChangeOld", "ClustermapChangeResponse", "CreateBucket"]
__all__ += ["CreateBucketResponse", "DeleteBucket", "DeleteBucketResponse", "GetClusterConfig"]
__all__ += ["GetClusterConfigResponse", "GetErrorMap", "GetErrorMapResponse", "Hello", "HelloResponse", "ListBuckets"]
__all__ += ["ListBucketsResponse", "Noop", "NoopResponse", "Quit", "QuitQuiet", "QuitResponse", "SaslAuth"]
__all__ += ["SaslAuthContinue", "SaslAuthResponse", "SaslListMechs", "SaslListMechsResponse", "SaslStep"]
__all__ += ["SaslStepContinue", "SaslStepResponse", "SelectBucket", "SelectBucketResponse", "SetClusterConfig"]
__all__ += ["SetClusterConfigResponse", "Stat", "StatResponse", "Verbosity", "VerbosityResponse", "Version"]
__all__ += ["VersionResponse"]


# --------------------------------------------------------------------------- bootstrap

Features = Annotated[list[int], Rows((("feature", NUMBERS[16]),))]


class Hello(Request, opcode=Opcode.HELLO, key=OPTIONAL):
    """Asks for features; the key names the client. Switches off all features granted before."""

    features: Features = about("feature codes asked for", where=VALUE)


class HelloResponse(Response, opcode=Opcode.HELLO):
    """What is switched on."""

    features: Features = about("feature codes granted", where=VALUE)


class SaslListMechs(Request, opcode=Opcode.SASL_LIST_MECHS):
    """Asks for the mechanisms."""


class SaslListMechsResponse(Response, opcode=Opcode.SASL_LIST_MECHS, value=OPTIONAL):
    """The mechanisms, separated by blanks, strongest first."""


class SaslAuth(Request, opcode=Opcode.SASL_AUTH, key=REQUIRED, value=OPTIONAL):
    """Begins to authenticate; the key is the mechanism, the value its first message."""


class SaslAuthResponse(Response, opcode=Opcode.SASL_AUTH, value=OPTIONAL):
    """Authenticated."""


class SaslAuthContinue(Response, opcode=Opcode.SASL_AUTH, status=Status.AUTH_CONTINUE, value=OPTIONAL):
    """The value is a challenge; go on with SaslStep."""


class SaslStep(SaslAuth, opcode=Opcode.SASL_STEP):
    """Goes on authenticating."""


class SaslStepResponse(Response, opcode=Opcode.SASL_STEP, value=OPTIONAL):
    """Authenticated; the value is the server's last message."""


class SaslStepContinue(Response, opcode=Opcode.SASL_STEP, status=Status.AUTH_CONTINUE, value=OPTIONAL):
    """The value is another challenge."""


class SelectBucket(Request, opcode=Opcode.SELECT_BUCKET, key=OPTIONAL):
    """Selects the bucket named by the key; an empty key deselects."""


class SelectBucketResponse(Response, opcode=Opcode.SELECT_BUCKET):
    """The bucket is selected."""


class ListBuckets(Request, opcode=Opcode.LIST_BUCKETS):
    """Asks for the buckets."""


class ListBucketsResponse(Response, opcode=Opcode.LIST_BUCKETS, value=OPTIONAL):
    """Their names, separated by blanks."""


class CreateBucket(Request, opcode=Opcode.CREATE_BUCKET, key=REQUIRED, value=OPTIONAL):
    """Makes a bucket; the value is module, a zero byte, configuration."""


class CreateBucketResponse(Response, opcode=Opcode.CREATE_BUCKET):
    """It is made."""


class DeleteBucket(Request, opcode=Opcode.DELETE_BUCKET, key=REQUIRED, value=OPTIONAL):
    """Deletes a bucket; the value may be "force=true"."""


class DeleteBucketResponse(Response, opcode=Opcode.DELETE_BUCKET):
    """It is deleted."""


class GetClusterConfig(Request, opcode=Opcode.GET_CLUSTER_CONFIG, extras_bytes=(0, 16)):
    """Asks for the cluster map."""

    epoch: i64 | None = about("epoch of the map the client has", default=None)
    revision: i64 | None = about("revision of it", default=None)


class GetClusterConfigResponse(Response, opcode=Opcode.GET_CLUSTER_CONFIG, value=OPTIONAL):
    """The map as JSON; empty when the client's is as new."""


class SetClusterConfig(Request, opcode=Opcode.SET_CLUSTER_CONFIG, key=OPTIONAL, value=REQUIRED):
    """Gives a node the map of the bucket named by the key."""

    epoch: i64 = about("epoch of the map")
    revision: i64 = about("revision of the map")


class SetClusterConfigResponse(Response, opcode=Opcode.SET_CLUSTER_CONFIG):
    """The map is set."""


class ClustermapChange(
    Request,
    opcode=ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION,
    magic=Magic.SERVER_REQUEST,
    key=OPTIONAL,
    value=OPTIONAL,
):
    """The server tells of a new map (in the value, unless the brief form was asked for)."""

    epoch: i64 = about("epoch of the map")
    revision: i64 = about("revision of the map")


class ClustermapChangeOld(
    Request,
    opcode=ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION,
    magic=Magic.SERVER_REQUEST,
    key=OPTIONAL,
    value=OPTIONAL,
):
    """The same from an old server."""

    revision: u32 = about("revision of the map")


class ClustermapChangeResponse(
    Response, opcode=ServerOpcode.CLUSTERMAP_CHANGE_NOTIFICATION, magic=Magic.SERVER_RESPONSE
):
    """The client heard; optional, ignored by the server."""


class GetErrorMap(Request, opcode=Opcode.GET_ERROR_MAP):
    """Asks what the statuses mean."""

    version: u16 = about("highest version understood", where=VALUE)


class GetErrorMapResponse(Response, opcode=Opcode.GET_ERROR_MAP, value=REQUIRED):
    """The meanings as JSON."""


# --------------------------------------------------------------------------- small ones


class Noop(Request, opcode=Opcode.NOOP):
    """Asks for an answer; TAP producers send it when idle."""


class NoopResponse(Response, opcode=Opcode.NOOP):
    """Here it is."""


class Version(Request, opcode=Opcode.VERSION):
    """Asks for the server's version."""


class VersionResponse(Response, opcode=Opcode.VERSION, value=REQUIRED):
    """The version as text."""


class Verbosity(Request, opcode=Opcode.VERBOSITY):
    """Sets how much the server logs."""

    level: u32 = about("0 and up")


class VerbosityResponse(Response, opcode=Opcode.VERBOSITY):
    """It is set."""


class Quit(Request, opcode=Opcode.QUIT):
    """Asks the server to answer, then close."""


class QuitQuiet(Quit, opcode=Opcode.QUITQ):
    """Asks the server to close."""


class QuitResponse(Response, opcode=Opcode.QUIT):
    """The server closes."""


class Stat(Request, opcode=Opcode.STAT, key=OPTIONAL, value=OPTIONAL):
    """Asks for statistics; the key is the group and its arguments."""


class StatResponse(Response, opcode=Opcode.STAT, key=OPTIONAL, value=OPTIONAL):
    """One of them; the last answer has neither key nor value."""
