"""The options of a TAP_CONNECT, read and checked; and written, for clients.

Source: tap.md 1 and 1.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headwater.errors import BadMessage, OptionError, RemoteProtocolError
from headwater.wire.header import Frame
from headwater.wire.status import Status
from headwater.wire.tap import Connect, ConnectFlag, ConnectWide
from headwater.wire.vbucket import VBUCKET_MAX

_FORMS: dict[int, type[Connect] | type[ConnectWide]] = {
    size: form for form in (Connect, ConnectWide) for size in form.layout.extras_lengths
}
"""Size of the extras -> the message with extras of that size."""
_AGE_BYTES = Connect.layout.field_bytes("backfill_age")
OPTIONS_BYTES_MAX = 16 << 10
"""The longest options: an age, a list of all 1024 vbuckets and one of their checkpoints fit."""
SESSION_NAME_BYTES_MAX = 250
"""The longest name: keys of statistics begin with it, and have a limit of their own."""
NOW = 0xFFFF_FFFF_FFFF_FFFF
"""A value of `since`: only changes from now on, no existing items."""

FLAGS = {
    "since": ConnectFlag.BACKFILL,
    "dump": ConnectFlag.DUMP,
    "vbuckets": ConnectFlag.LIST_VBUCKETS,
    "takeover": ConnectFlag.TAKEOVER_VBUCKETS,
    "acknowledge": ConnectFlag.SUPPORT_ACK,
    "keys_only": ConnectFlag.REQUEST_KEYS_ONLY,
    "checkpoints": ConnectFlag.CHECKPOINT,
    "registered": ConnectFlag.REGISTERED_CLIENT,
    "network_byte_order": ConnectFlag.FIX_FLAG_BYTEORDER,
}
"""Field of TapOptions -> the flag that says that it is set, or that its value follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TapOptions:
    """The options of a TAP stream.

    Attributes:
        name: name of the session; empty for a session that can't be resumed.
        since: Unix seconds, the time of the oldest change to send; a future time (NOW) means "changes only", None and 0
            mean everything.
        dump: send existing items, then end.
        vbuckets: only these; empty for all.
        takeover: hand the vbuckets over: at the end they are active at the receiver, and dead at the sender.
        acknowledge: the client acknowledges messages with flag ACK.
        keys_only: send no values.
        checkpoints: for each vbucket the last checkpoint that the client has whole; None for no checkpoint messages.
        registered, closed_checkpoints_only: accepted, without effect.
        network_byte_order: True to send item flags in network byte order; False for reversed bytes (tap.md 3.1).
    """

    name: bytes = b""
    since: int | None = None
    dump: bool = False
    vbuckets: tuple[int, ...] = ()
    takeover: bool = False
    acknowledge: bool = False
    keys_only: bool = False
    checkpoints: dict[int, int] | None = None
    registered: bool = False
    closed_checkpoints_only: bool = False
    network_byte_order: bool = False

    @property
    def flags(self) -> ConnectFlag:
        """The connect flags of these options."""
        with_values = {"since": self.since is not None, "vbuckets": bool(self.vbuckets)}
        with_values["checkpoints"] = self.checkpoints is not None
        return ConnectFlag(sum(flag for name, flag in FLAGS.items() if with_values.get(name, getattr(self, name))))

    @property
    def ends(self) -> bool:
        """True if the producer closes the connection once everything is sent."""
        return self.dump or self.takeover

    def goes_on_from(self, other: TapOptions) -> bool:
        """Return True if a client that requests these options resumes the session of the same name with the options
        `other`.

        A dump sends "existing items only", all of them: it always starts again and is never resumed. A takeover resumes
        only a takeover, because only a takeover first sets the vbuckets to pending.
        """
        return not self.dump and not other.dump and self.takeover == other.takeover

    def check(self) -> TapOptions:
        """Return self.

        Raises:
            OptionError: an option has an impossible value.
        """
        if len(self.name) > SESSION_NAME_BYTES_MAX:
            raise OptionError("name", self.name, f"at most {SESSION_NAME_BYTES_MAX} bytes")
        if bad_vbuckets := [vb for vb in self.vbuckets if not 0 <= vb <= VBUCKET_MAX]:
            raise OptionError("vbuckets", bad_vbuckets[0], f"vbuckets, 0 to {VBUCKET_MAX}")
        if self.takeover and not self.vbuckets:
            raise OptionError("takeover", self.takeover, "given together with the vbuckets to take over")
        if self.since is not None and not 0 <= self.since <= NOW:
            raise OptionError("since", self.since, "Unix seconds, or NOW")
        return self

    def wants_backfill(self, now: int) -> bool:
        """Return True if `since` requires a backfill at `now` (Unix seconds).

        "The age defaults to 0 when BACKFILL is absent. Backfilled in full iff age < now."
        """
        return (self.since or 0) < now

    def encode(self) -> bytes:
        """Return the encoded TAP_CONNECT."""
        return Connect(
            key=self.name,
            flags=int(self.flags),
            backfill_age=self.since,
            vbuckets=list(self.vbuckets) or None,
            checkpoints=None if self.checkpoints is None else sorted(self.checkpoints.items()),
            closed_checkpoints_only=int(self.closed_checkpoints_only) if self.registered else None,
        ).encode()


def read_connect(frame: Frame) -> TapOptions:
    """Read a TAP_CONNECT.

    Raises:
        BadMessage: answer with its status (EINVAL; NOT_SUPPORTED for a malformed list of vbuckets), then close.
        RemoteProtocolError: "body too short for the announced option values: disconnect".
    """
    if frame.extras and not any(frame.extras):
        # gotap puts in as many zero bytes as its flags are worth. Servers of its time read "no flags", and no value.
        frame = replace(frame, extras=b"", value=b"")
    if len(frame.key) > SESSION_NAME_BYTES_MAX:
        problem = f"a name of {len(frame.key)} bytes, {SESSION_NAME_BYTES_MAX} are allowed"
        raise BadMessage("TAP_CONNECT", frame.opcode, problem)
    if len(frame.value) > OPTIONS_BYTES_MAX:  # before it is taken apart, row by row
        problem = f"option values of {len(frame.value)} bytes, {OPTIONS_BYTES_MAX} are allowed"
        raise BadMessage("TAP_CONNECT", frame.opcode, problem)
    form = _FORMS.get(len(frame.extras))
    if form is None:
        raise BadMessage("TAP_CONNECT", frame.opcode, f"extras are {len(frame.extras)} bytes, expected 0, 4 or 8")
    try:
        read = form.decode(frame)
    except BadMessage as error:
        raise _refusal(frame, form, error) from None
    flags = ConnectFlag((read.flags or 0) & sum(ConnectFlag))  # "unknown flag bits: ignore"
    fields: dict[str, Any] = {name: flag in flags for name, flag in FLAGS.items()}
    fields |= {"since": read.backfill_age, "vbuckets": tuple(dict.fromkeys(read.vbuckets or ()))}
    # A takeover needs a list (tap.md 1.1, 0x08): without one a client would be handed every vbucket of the node.
    fields["takeover"] &= bool(read.vbuckets)
    fields["checkpoints"] = dict(read.checkpoints or ()) if fields["checkpoints"] else None
    return TapOptions(name=read.key, closed_checkpoints_only=bool(read.closed_checkpoints_only), **fields)


def _refusal(frame: Frame, form: type[Connect] | type[ConnectWide], error: BadMessage) -> RemoteProtocolError:
    flags = form.layout.extras.read(frame.extras, 0).get("flags")
    if flags is None:
        return error  # a value without flags
    before = _AGE_BYTES if flags & ConnectFlag.BACKFILL else 0
    if flags & ConnectFlag.LIST_VBUCKETS and len(frame.value) >= before:
        return BadMessage("TAP_CONNECT", frame.opcode, error.problem, Status.NOT_SUPPORTED)
    return RemoteProtocolError(f"TAP_CONNECT: {error.problem}")
