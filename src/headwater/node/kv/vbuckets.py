"""vbuckets: their states, seqnos and failover logs (kv.md 3)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headwater.errors import StorageError
from headwater.node.kv.access import check_collection
from headwater.node.kv.command import handles
from headwater.node.kv.gathering import seqnos_in
from headwater.node.refused import CommandRefused
from headwater.node.vbucket.collection_events import PLAIN, Wanted
from headwater.wire import admin
from headwater.wire.datatype import Datatype
from headwater.wire.features import Feature
from headwater.wire.json_text import read_json
from headwater.wire.layout import Done, Request
from headwater.wire.privilege import STREAM
from headwater.wire.status import Status
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from headwater.node.buckets.bucket import Bucket
    from headwater.node.kv.api import Services, Session
    from headwater.node.vbucket.vbucket import VBucket

AnySetVbucket = admin.SetVbucket | admin.SetVbucketOld | admin.SetVbucketOldest

FORCE = "force"
"""A key of the request's JSON: its value true makes a vbucket active although it lacks changes, or has damaged ones.
Other servers do not know this key."""
PERSISTENCE_SECONDS_MAX = 30.0
SETTLED_SECONDS_MAX = 2.0
IF_GONE = (
    "if the members that would know never come back, take them out: headwater cluster failover --dead NODE; a map that "
    "is sent to this node, and SET_VBUCKET of each of these vbuckets, do as well"
)
_ALIVE = 0
_DEFAULT_COLLECTION = frozenset({0})
_ALIVE_STATES = frozenset({State.ACTIVE, State.REPLICA, State.PENDING})


def vbucket(session: Session, request: Request) -> VBucket:
    """Return the vbucket of a request, in any state. Raises CommandRefused with NOT_MY_VBUCKET if it is not on this
    node.
    """
    vbucket_ = session.store_bucket.vbuckets.get(request.vbucket)
    if vbucket_ is None:
        raise session.not_my_vbucket()
    return vbucket_


def check_served(session: Session, vbucket: int) -> None:
    """Refuse a request on documents of a vbucket that is not active here, or is fenced."""
    bucket = session.store_bucket
    if bucket.state(vbucket) is not State.ACTIVE:
        raise session.not_my_vbucket()
    if vbucket in bucket.fenced:
        raise CommandRefused(Status.ETMPFAIL, "it is not known yet whether another node owns the vbucket by now")


def _document(request: AnySetVbucket, state: State) -> dict[str, Any]:
    """Return the parsed JSON of a request; empty without a value. Raises CommandRefused with EINVAL if it is
    invalid.
    """
    if not request.value:
        return {}
    if not request.datatype & Datatype.JSON:
        raise CommandRefused(Status.EINVAL, "the value must be JSON")
    try:
        content: Any = read_json(request.value)
    except ValueError as error:
        raise CommandRefused(Status.EINVAL, f"the value is not JSON: {error}") from None
    member_names = {"topology", "use_snapshot", "next_expected_state", FORCE}
    if not isinstance(content, dict) or not set(content) <= member_names:
        raise CommandRefused(Status.EINVAL, f"the value may hold {', '.join(sorted(member_names))}")
    if "topology" in content and state is not State.ACTIVE:
        raise CommandRefused(Status.EINVAL, "only an active vbucket has a topology")
    return content


def set_state(session: Session, vbucket: int, state: State, *, force: bool = False) -> bool:
    """Set the state of a vbucket, and create it if it is missing; return False if it has that state already.

    Args:
        force: True to make the vbucket active although it lacks changes, or has damaged ones.

    Raises:
        CommandRefused: KEY_EEXISTS, the vbucket lacks changes, or has damaged ones.
        ArenaFull, DiskFull: nothing was changed.
    """
    bucket, is_new = session.store_bucket, True
    vbucket_ = bucket.vbuckets.get(vbucket)
    if vbucket_ is None:
        bucket.create_vbucket(vbucket, state)
    # Without this check, a flawed copy could become active, and lose changes that another copy still has (decisions
    # 0106, 0107).
    elif state is State.ACTIVE and not force and (flaw := _flaw(vbucket_)):
        raise CommandRefused(Status.KEY_EEXISTS, f'{flaw}; the value {{"{FORCE}": true}} makes it active all the same')
    else:
        is_new = vbucket_.set_state(state)
    # After the change: the map must not undo a state that an operator has set by hand.
    session.server.membership.state_set(vbucket)
    session.server.record(session, f"set vbucket {vbucket} {state.name.lower()}", moves=True)
    return is_new


def _flaw(vbucket: VBucket) -> str:
    """Return the reason, for people, why a copy must not become active without `force`; empty if there is none."""
    if vbucket.has_gap:
        return f"it refused {vbucket.refused_changes} changes of its producer and lacks them"
    damaged = vbucket.damaged_changes if vbucket.state is not State.ACTIVE else 0
    return f"{damaged} of its changes are damaged on this disk, and another copy may have them" if damaged else ""


@handles(admin.SetVbucket, admin.SetVbucketOld, admin.SetVbucketOldest, writes=True, frees=True)
def set_vbucket(session: Session, request: AnySetVbucket) -> Done:
    """Set a vbucket's state, and create the vbucket if it is missing; this is durable before the answer is sent."""
    bucket, state = session.store_bucket, State(request.state)
    document = _document(request, state)
    if request.vbucket >= bucket.vbucket_count:
        raise CommandRefused(Status.ERANGE, f"vbuckets are 0 to {bucket.vbucket_count - 1}")
    set_state(session, request.vbucket, state, force=document.get(FORCE) is True)
    session.wrote()
    return Done()


@handles(admin.GetVbucket)
def get_vbucket(session: Session, request: admin.GetVbucket) -> admin.GetVbucketResponse:
    """Return the state of a vbucket."""
    vbucket_ = vbucket(session, request)
    # A mover relies on this answer after a handover, so the state must survive a crash.
    session.saw(vbucket_)
    return admin.GetVbucketResponse(state=vbucket_.state)


@handles(admin.DelVbucket, writes=True, frees=True)
def del_vbucket(session: Session, request: admin.DelVbucket) -> Done:
    """Drop a vbucket: its state becomes dead, which ends its streams, and it is removed at once, so `async=0` has no
    effect.
    """
    if request.value not in (b"", b"async=0", b"async=1"):
        raise CommandRefused(Status.EINVAL, "the value may be async=0")
    vbucket(session, request)
    session.store_bucket.drop_vbucket(request.vbucket)
    session.server.record(session, f"deleted vbucket {request.vbucket}", moves=True)
    session.wrote()
    return Done()


@handles(admin.GetAllVbSeqnos, anywhere=True)
def get_all_vb_seqnos(
    session: Session, request: admin.GetAllVbSeqnos
) -> admin.GetAllVbSeqnosResponse | Awaitable[admin.GetAllVbSeqnosResponse]:
    """Return the high seqnos of vbuckets in a state, in vbucket order; state 0 means active, replica or pending.

    A client that requests active vbuckets will read up to these seqnos. So a fenced vbucket is not reported as active:
    another node may own it and have more changes. If the map names this node as the owner of a fenced vbucket, the
    request is refused, because the reader would get the vbucket from no node. The answer also waits until durable
    writes of a former owner are settled: otherwise a reader could miss a write that was confirmed to a client.
    """
    # Read before the answer waits: the session forgets the other workers' answers as soon as this handler returns.
    others = dict(seqnos_in(session.others))
    seqnos = _seqnos(session, request, others)
    if request.vb_state == State.ACTIVE and _unsettled(session, request, seqnos):
        return _seqnos_once_settled(session, request, others)
    return seqnos


async def _seqnos_once_settled(
    session: Session, request: admin.GetAllVbSeqnos, others: Mapping[int, int]
) -> admin.GetAllVbSeqnosResponse:
    committer, loop = session.server.committer, session.server.loop
    give_up = loop.time() + SETTLED_SECONDS_MAX
    while unsettled := _unsettled(session, request, seqnos := _seqnos(session, request, others)):
        try:
            async with asyncio.timeout(give_up - loop.time()):
                await committer.wait(committer.durable + 1)
        except TimeoutError:
            cause = f"no seqnos yet: durable writes of an owner before are being settled in {len(unsettled)} vbuckets"
            next_step = f"the first is {unsettled[0]}; its replicas must be up, or failed over"
            raise CommandRefused(Status.ETMPFAIL, f"{cause}, {next_step}") from None
    return seqnos


def _unsettled(session: Session, request: admin.GetAllVbSeqnos, seqnos: admin.GetAllVbSeqnosResponse) -> list[int]:
    bucket, collections = session.store_bucket, _collections(session, request)
    writes = bucket.durable_writes
    return [vb for vb, _ in seqnos.seqnos if vb in bucket.vbuckets and not writes.is_settled(vb, collections)]


def _collections(session: Session, request: admin.GetAllVbSeqnos) -> frozenset[int] | None:
    choice = _wanted_collection(session, request)
    return choice.collections if choice.aware else _DEFAULT_COLLECTION


def _seqnos(session: Session, request: admin.GetAllVbSeqnos, others: Mapping[int, int]) -> admin.GetAllVbSeqnosResponse:
    choice = _wanted_collection(session, request)
    number = request.vb_state or _ALIVE
    if number > State.DEAD:
        raise CommandRefused(Status.EINVAL, f"{number} is no state")
    states = _ALIVE_STATES if number == _ALIVE else frozenset({State(number)})
    bucket, vbuckets = session.store_bucket, sorted(session.store_bucket.vbuckets.items())
    selected = [each for _, each in vbuckets if each.state in states]
    if choice.collections is not None:
        selected = [each for each in selected if choice.collections <= each.collections.alive.keys()]
        if not selected:
            raise bucket.collections.unknown_collection(min(choice.collections))
    if number == State.ACTIVE:
        chosen_ids = {each.id for each in selected}
        if waiting := chosen_ids.intersection(undecided(session.server)):
            cause = f"no seqnos yet: {len(waiting)} vbuckets may belong to another node by now; {IF_GONE}"
            raise CommandRefused(Status.ETMPFAIL, cause)
        selected = [each for each in selected if each.id not in bucket.fenced]
    seqnos = {each.id: _high_seqno(bucket, each, choice) for each in selected}
    return admin.GetAllVbSeqnosResponse(seqnos=sorted({**others, **seqnos}.items()))


def undecided(server: Services) -> list[int]:
    """Return the fenced vbuckets for which the map names this node, or no node, as owner. Clients look for these
    vbuckets here, although another node may own them by now.
    """
    cluster_map = server.membership.map
    return [
        vb for vb in server.bucket.fenced if cluster_map is None or cluster_map.owner(vb) in (None, cluster_map.here)
    ]


def moving(bucket: Bucket) -> int | None:
    """Return the lowest vbucket that is being handed over, from or to this node; None if there is none. During a part
    of the handover neither node serves its documents.
    """
    numbers = (
        vb for vb, vbucket in bucket.vbuckets.items() if vbucket.handover is not None or vbucket.state is State.PENDING
    )
    return min(numbers, default=None)


def _wanted_collection(session: Session, request: admin.GetAllVbSeqnos) -> Wanted:
    """Return the collections whose seqnos a request wants, after a check of the rights. "For connections without
    Collections the high seqno is that of the default collection" (kv.md 3).
    """
    if not session.has(Feature.COLLECTIONS):
        if request.collection_id is not None:
            raise CommandRefused(Status.EINVAL, "a collection can't be named without Collections")
        check_collection(session, 0, STREAM)
        return PLAIN
    collection = request.collection_id
    if collection is not None:
        check_collection(session, collection, STREAM)
    return Wanted(aware=True, collections=None if collection is None else frozenset({collection}))


def _high_seqno(bucket: Bucket, vbucket: VBucket, choice: Wanted) -> int:
    """Return the newest durable seqno of the wanted collection, or of all collections."""
    durable = vbucket.durable_seqno
    if choice.is_everything or not bucket.store.index.is_mixed(vbucket.id):
        return durable
    return bucket.store.newest_seqno(vbucket.id, vbucket.collections.choice(choice, durable))


@handles(admin.GetFailoverLog, anywhere=True)
def get_failover_log(session: Session, request: admin.GetFailoverLog) -> admin.GetFailoverLogResponse:
    """Return the failover log, newest branch first, as 0x54 does on a DCP connection."""
    vbucket_ = vbucket(session, request)
    session.saw(vbucket_)
    return admin.GetFailoverLogResponse(failover_log=list(vbucket_.failover.entries))


@handles(admin.SeqnoPersistence, admin.SeqnoPersistenceOld, anywhere=True)
async def seqno_persistence(session: Session, request: admin.SeqnoPersistence | admin.SeqnoPersistenceOld) -> Done:
    """Answer once the seqno is durable, or with ETMPFAIL after PERSISTENCE_SECONDS_MAX."""
    vbucket_, seqno = vbucket(session, request), request.seqno
    committer = session.server.committer
    give_up = session.server.loop.time() + PERSISTENCE_SECONDS_MAX
    while vbucket_.durable_seqno < seqno:
        remaining_seconds = give_up - session.server.loop.time()
        try:  # wait for the batch in flight, not for the open one, which may stay empty
            async with asyncio.timeout(remaining_seconds):
                await committer.wait(committer.durable + 1)
        except TimeoutError:
            raise CommandRefused(Status.ETMPFAIL, f"seqno {seqno} is not durable yet") from None
    return Done()


@handles(admin.CompactDb, lasts=True)
async def compact_db(session: Session, request: admin.CompactDb) -> Done:
    """Purge tombstones: those older than a time, those up to a seqno, or all. The purge seqno rises to the seqno of the
    newest purged tombstone.
    """
    vbucket_ = vbucket(session, request)
    before, seqno = request.purge_before_ts, request.purge_before_seqno
    everything = request.drop_deletes != 0
    try:
        await session.server.compactor.purge(
            vbucket_.id, before_seconds=before, before_seqno=seqno, everything=everything
        )
    except StorageError as error:
        raise CommandRefused(Status.ETMPFAIL, str(error)) from None
    return Done()
