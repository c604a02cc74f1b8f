"""vbuckets: their states, seqnos and failover logs (kv.md 3)."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from headwater.errors import StorageError
from headwater.node.kv.command import Answer, Part, Refused, Reply, command
from headwater.wire.datatype import Datatype
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.kv.session import KvSession
    from headwater.node.vbucket.vbucket import VBucket

PERSISTENCE_SECONDS_MAX = 30.0
_ALIVE = 0
_ALIVE_STATES = frozenset({State.ACTIVE, State.REPLICA, State.PENDING})


def vbucket(session: KvSession, frame: Frame) -> VBucket:
    """The vbucket a request names, in whatever state; NOT_MY_VBUCKET if it is not here."""
    found = session.store_bucket.vbuckets.get(frame.vbucket)
    if found is None:
        raise session.not_my_vbucket()
    return found


def _wanted_state(frame: Frame) -> State:
    """One byte of extras; four in old clients; or four bytes of value in older ones."""
    number = frame.extras if frame.extras else frame.value
    if len(number) not in (1, 4):
        raise Refused(Status.EINVAL, "a state is 1 or 4 bytes")
    try:
        return State(int.from_bytes(number, "big"))
    except ValueError:
        raise Refused(Status.EINVAL, "a state is 1 (active), 2 (replica), 3 (pending) or 4 (dead)") from None


def _check_document(frame: Frame, state: State) -> None:
    """The optional JSON: a topology belongs to an active vbucket only."""
    if not frame.extras or not frame.value:
        return
    if not frame.datatype & Datatype.JSON:
        raise Refused(Status.EINVAL, "the value must be JSON")
    try:
        found: Any = json.loads(frame.value)
    except ValueError:
        raise Refused(Status.EINVAL, "the value is not JSON") from None
    known = {"topology", "use_snapshot", "next_expected_state"}
    if not isinstance(found, dict) or not set(found) <= known:
        raise Refused(Status.EINVAL, f"the value may hold {', '.join(sorted(known))}")
    if "topology" in found and state is not State.ACTIVE:
        raise Refused(Status.EINVAL, "only an active vbucket has a topology")


@command(Opcode.SET_VBUCKET, extras=(0, 1, 4), value=Part.ANY, cas=True, writes=True)
def set_vbucket(session: KvSession, frame: Frame) -> Reply:
    """Set a state, and make the vbucket if it is not here; answered when that is durable."""
    bucket, state = session.store_bucket, _wanted_state(frame)
    _check_document(frame, state)
    if frame.vbucket >= bucket.vbucket_count:
        raise Refused(Status.ERANGE, f"vbuckets are 0 to {bucket.vbucket_count - 1}")
    found = bucket.vbuckets.get(frame.vbucket)
    if found is None:
        bucket.create_vbucket(frame.vbucket, state)
    else:
        found.set_state(state)
    session.wrote()
    session.server.membership.state_set(frame.vbucket)
    return Reply()


@command(Opcode.GET_VBUCKET)
def get_vbucket(session: KvSession, frame: Frame) -> Reply:
    """The state as four bytes."""
    found = vbucket(session, frame)
    session.saw(found)
    return Reply(value=int(found.state).to_bytes(4, "big"))


@command(Opcode.DEL_VBUCKET, value=Part.ANY, cas=True, writes=True)
def del_vbucket(session: KvSession, frame: Frame) -> Reply:
    """Forget a vbucket: it is dead first, which ends its streams; removed at once, so `async=0` changes nothing."""
    if frame.value not in (b"", b"async=0", b"async=1"):
        raise Refused(Status.EINVAL, "the value may be async=0")
    vbucket(session, frame)
    session.store_bucket.drop_vbucket(frame.vbucket)
    session.wrote()
    return Reply()


@command(Opcode.GET_ALL_VB_SEQNOS, extras=(0, 4, 8))
def get_all_vb_seqnos(session: KvSession, frame: Frame) -> Reply:
    """(vbucket, high seqno) pairs in vbucket order; by state, 0 standing for active, replica and pending."""
    if len(frame.extras) == 8:
        raise Refused(Status.EINVAL, "a collection can't be named without Collections")
    number = int.from_bytes(frame.extras, "big")
    if number > State.DEAD:
        raise Refused(Status.EINVAL, f"{number} is no state")
    wanted = _ALIVE_STATES if number == _ALIVE else frozenset({State(number)})
    found = sorted(session.store_bucket.vbuckets.items())
    return Reply(
        value=b"".join(
            vb.to_bytes(2, "big") + each.durable_seqno.to_bytes(8, "big") for vb, each in found if each.state in wanted
        )
    )


@command(Opcode.GET_FAILOVER_LOG)
def get_failover_log(session: KvSession, frame: Frame) -> Reply:
    """The failover log, newest first: what 0x54 is on a DCP connection."""
    found = vbucket(session, frame)
    session.saw(found)
    return Reply(value=found.failover.encode())


@command(Opcode.SEQNO_PERSISTENCE, extras=(0, 8), value=Part.ANY)
async def seqno_persistence(session: KvSession, frame: Frame) -> Answer:
    """Answered once the seqno is durable; ETMPFAIL after 30 s."""
    number = frame.extras or frame.value
    if len(number) != 8:
        raise Refused(Status.EINVAL, "a seqno is 8 bytes")
    found, seqno = vbucket(session, frame), int.from_bytes(number, "big")
    committer = session.server.committer
    give_up = session.server.loop.time() + PERSISTENCE_SECONDS_MAX
    while found.durable_seqno < seqno:
        left = give_up - session.server.loop.time()
        try:  # the next batch that ends, not the open one: nothing may be staged after the batch in flight
            await asyncio.wait_for(committer.wait(committer.durable + 1), left)
        except TimeoutError:
            raise Refused(Status.ETMPFAIL, f"seqno {seqno} is not durable yet") from None
    return Reply()


@command(Opcode.COMPACT_DB, extras=(24,), cas=True)
async def compact_db(session: KvSession, frame: Frame) -> Answer:
    """Purge tombstones before a time or up to a seqno (or all of them), and raise the purge seqno to the highest
    gone."""
    found = vbucket(session, frame)
    before, seqno = (int.from_bytes(frame.extras[at : at + 8], "big") for at in (0, 8))
    everything = frame.extras[16] != 0
    try:
        await session.server.compactor.purge(found.id, before_seconds=before, before_seqno=seqno, everything=everything)
    except StorageError as error:
        raise Refused(Status.ETMPFAIL, str(error)) from None
    return Reply()
