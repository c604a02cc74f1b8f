"""Reads DCP_OPEN, and refuses invalid requests.

Source: DCP, open-connection.md; dcp 2.1.
"""

from headwater.errors import BadMessage
from headwater.protocol.dcp.controls import Negotiated
from headwater.wire.datatype import Datatype
from headwater.wire.dcp import Open, OpenFlag
from headwater.wire.features import Feature
from headwater.wire.header import Frame
from headwater.wire.json_text import read_json

NAME_BYTES_MAX = 200
"""The documented limit of a connection's name."""

HAND_OVER = b":hand-over"
"""The suffix of the name of a mover's connection on which vbuckets change their node."""

_KNOWN = sum(OpenFlag)
_REFUSED_TOGETHER = (
    (OpenFlag.NO_VALUE | OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE, "no-value flags 0x08 and 0x40 exclude each other"),
)
_NEEDS = (
    (OpenFlag.INCLUDE_DELETED_USER_XATTRS, OpenFlag.INCLUDE_XATTRS, "flag 0x100 needs flag 0x04"),
    (OpenFlag.SKIP_DELETES_IN_INITIAL_BACKFILL, OpenFlag.PRODUCER, "flag 0x200 needs flag 0x01"),
)


def read_open(frame: Frame) -> Open:
    """Read an OPEN request.

    Raises:
        BadMessage: the request is malformed, or has flags that are unknown or exclude each other; answer with the
            error's status.
    """
    request = Open.decode(frame)
    problem = _problem(request)
    if problem:
        raise BadMessage("Open", frame.opcode, problem)
    return request


def negotiated_by(request: Open, features: frozenset[int]) -> Negotiated:
    """Return the facts that OPEN fixes for the connection: the features of HELLO, and OPEN's name and flags (dcp 1)."""
    return Negotiated(
        snappy=Feature.SNAPPY in features,
        collections=Feature.COLLECTIONS in features,
        xerror=Feature.XERROR in features,
        xattrs=bool(request.flags & OpenFlag.INCLUDE_XATTRS),
        delete_times=bool(request.flags & OpenFlag.INCLUDE_DELETE_TIMES),
        deleted_user_xattrs=bool(request.flags & OpenFlag.INCLUDE_DELETED_USER_XATTRS),
        connection_name=request.key.decode("latin-1"),
        # "HELLO or CONTROL seen = DCP" (dcp 14); of OPEN's flags, "UPR: only bit 0x01 is defined" (dcp 2.1).
        speaks_dcp=bool(features or request.flags & ~OpenFlag.PRODUCER),
        json=Feature.JSON in features,
    )


def consumer_name_in(request: Open) -> str:
    """Return the name under which the consumer acknowledges prepares; empty if OPEN has none (dcp 2.1)."""
    return str(read_json(request.value).get("consumer_name", "")) if request.value else ""


def _problem(request: Open) -> str:
    """Return the problem of the request; empty if it is valid."""
    # "The documented maximum is 200 bytes: a new server should reject more" (dcp 2.1).
    if len(request.key) > NAME_BYTES_MAX:
        return f"the name has {len(request.key)} bytes, {NAME_BYTES_MAX} are allowed"
    if request.flags & ~_KNOWN:
        return f"flags 0x{request.flags & ~_KNOWN:x} are unknown or retired"
    for together, problem in _REFUSED_TOGETHER:
        if request.flags & together == together:
            return problem
    for flag, required, problem in _NEEDS:
        if request.flags & flag and not request.flags & required:
            return problem
    return _value_problem(request)


def _value_problem(request: Open) -> str:
    """Return the problem of the value, which must be absent or JSON with the consumer's name alone; empty if valid."""
    if request.datatype not in (Datatype.RAW, Datatype.JSON):
        return f"datatype 0x{request.datatype:02x} is not that of a JSON value"
    if bool(request.value) != (request.datatype == Datatype.JSON):
        return f"a value of {len(request.value)} bytes with datatype {request.datatype}: JSON has datatype 1"
    return _json_problem(request) if request.value else ""


def _json_problem(request: Open) -> str:
    try:
        properties = read_json(request.value)
    except ValueError:
        return "the value is not JSON"
    if not isinstance(properties, dict):
        return "the value is not a JSON object"
    allowed = set() if request.flags & OpenFlag.PRODUCER else {"consumer_name"}
    if unknown_names := sorted(properties.keys() - allowed):
        return f"property {unknown_names[0]!r} has no meaning here"
    return "" if all(isinstance(name, str) for name in properties.values()) else "consumer_name is not a string"
