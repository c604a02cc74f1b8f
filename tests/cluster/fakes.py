"""Nodes and their administration without a network: what they have is written down, what is asked of them is noted.

node = FakeNode(A, "A r .", seqnos=[10, 7], log=[(0xAB, 0)])     vbucket 0 active, 1 a replica, 2 not there
members = FakeMembers(node, ...)
members.calls == [(A, "set_state", 1, State.ACTIVE)]             what was changed, by all, in order
"""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import numpy as np

from headwater.cluster.admin import Endpoint, Operator
from headwater.cluster.answers import IS_DAMAGED, CopyReport, FollowingReport, TakeoverStats
from headwater.cluster.members import NO_OTHERS
from headwater.cluster.survey import NodeView
from headwater.errors import ConnectionLost, KeyExists, KeyNotFound
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.header import response
from headwater.wire.manifest import EMPTY
from headwater.wire.status import Status
from headwater.wire.users import UserList
from headwater.wire.vbucket import VBUCKET_NUMBERS, State

from .views import STATES

SERVING = (State.ACTIVE, State.REPLICA, State.PENDING)


class FakeNode:
    """A node and the NodeAdmin that talks to it, in one. `within`: up to where vbuckets are complete that are within a
    snapshot; `damage`: how many changes of a vbucket its disk has lost. `kept`: the history that it keeps.

    Args:
        states: a letter for each vbucket, as in views.py. seqnos: of those that are there; 10 if left out.
        log: the failover log of each. follows: what it follows by its own calls, {producer: vbuckets}.
        config: its cluster map. is_gone: it does not answer.
        takes_over: the vbuckets that it follows until it owns them. streams: the state of all its streams.
    """

    takes_over, streams, kept, default = frozenset(), "reading", (0, 0), True

    def __init__(self, address, states="", *, seqnos=None, log=((0xAB, 0),), follows=None, config=None, is_gone=False):
        self.address, self.endpoint = address, Endpoint(address)
        self.held = {vb: STATES[letter] for vb, letter in enumerate(states.split()) if letter != "."}
        self.high = dict.fromkeys(self.held, 10) if seqnos is None else dict(zip(self.held, seqnos, strict=True))
        self.log, self.follows, self.given, self.is_gone = list(log), dict(follows or {}), config, is_gone
        self.vbuckets = len(states.split())
        self.calls = []
        self.asked = []
        self.within, self.damage = {}, {}
        self.operators = []
        self.takeover_told = []

    async def clock_held(self):
        return None

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        self.close()

    def close(self):
        self.calls.append((self.address, "close"))

    def _hear(self, *question):
        self.asked.append(question)
        if self.is_gone:
            raise ConnectionLost(str(self.address), "connection refused")

    def _do(self, *deed):
        self._hear(*deed)
        self.calls.append((self.address, *deed))

    async def buckets(self):
        return []

    async def users(self):
        return UserList()

    async def history(self):
        self._hear("history")
        return self.kept

    async def quota_mib(self):
        return 0

    async def collections_have_history(self):
        return self.default

    async def give_collections_history(self, *, history):
        self._do("give_collections_history", history)
        self.default = history

    async def keep_history(self, seconds, size):
        self._do("keep_history", seconds, size)
        self.kept = seconds, size

    async def lease(self, operator, *, is_renewal=False):
        self._hear("lease", is_renewal)
        self.operators.append(operator)

    async def release(self, *, over=False):
        self._hear("release")

    async def state(self, vb):
        self._hear("state", vb)
        return self.held.get(vb)

    async def states(self):
        self._hear("states")
        return dict(self.held)

    async def set_state(self, vb, state, *, force=False):
        self._do("set_state", vb, state)
        if state is State.ACTIVE and vb in self.damage and self.held.get(vb) is not state and not force:
            raise KeyExists(f"make vbucket {vb} active")
        self.held[vb] = state
        self.high.setdefault(vb, 0)

    async def delete(self, vb):
        self._do("delete", vb)
        return self.held.pop(vb, None) is not None

    async def seqnos(self, state=None):
        self._hear("seqnos", state)
        wanted = SERVING if state is None else (state,)
        return {vb: seqno for vb, seqno in self.high.items() if self.held[vb] in wanted}

    async def complete(self, vb=None):
        return await self.seqnos() | self.within

    async def copies(self, vbuckets):
        self._hear("copies", sorted(vbuckets))
        return {vb: self._copy(vb) for vb in vbuckets if vb in self.held}

    def _copy(self, vb):
        complete = self.within.get(vb, self.high[vb])
        return CopyReport(self.held[vb], self.high[vb], complete, self.log, 0, self.damage.get(vb, 0))

    async def failover_log(self, vb):
        self._hear("failover_log", vb)
        return self.log

    async def wait_persisted(self, vb, seqno):
        self._do("wait_persisted", vb, seqno)

    async def replicate(self, source, vbuckets):
        self._do("replicate", str(source), list(vbuckets))
        self.follows[str(source)] = list(vbuckets)

    async def stop_replicating(self, source, vbuckets=None):
        self._do("stop_replicating", str(source), vbuckets)
        if str(source) not in self.follows:
            return False
        mine = self.follows[str(source)]
        self.follows[str(source)] = [vb for vb in mine if vbuckets is not None and vb not in vbuckets]
        return True

    async def refused(self):
        return {}

    async def flaw(self, vb):
        return IS_DAMAGED if vb in self.damage else ""

    async def replication(self, vbucket=None):
        self._hear("replication")
        return {
            name: FollowingReport(name, vbuckets=dict.fromkeys(found, self.streams), takeovers=self.takes_over)
            for name, found in self.follows.items()
        }

    async def takeover_stats(self, vb, name):
        """The next of `takeover_told`, (status, estimate); a node whose list is empty has no such statistics."""
        self._hear("takeover_stats", vb, name)
        if not self.takeover_told:
            raise KeyNotFound(str(self.address))
        return TakeoverStats(*self.takeover_told.pop(0))

    async def config(self):
        self._hear("config")
        return self.given

    async def manifest(self):
        return EMPTY


class FakeMembers:
    """Members whose nodes are FakeNodes. `found`: the survey. `calls`: what all of them were told; `sent`: the maps;
    `alone_on`: what was done as the only operator, and where."""

    def __init__(self, *nodes, found=None, bucket="default"):
        self.nodes, self.found, self.bucket = {node.address: node for node in nodes}, found, bucket
        self.calls, self.sent, self.surveyed, self.alone_on = [], [], [], []
        self.operator = None
        for node in nodes:
            node.calls = self.calls

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        pass

    @asynccontextmanager
    async def alone(self, work, addresses):
        self.alone_on.append((work, sorted(addresses)))
        self.operator = Operator("a run", work)
        yield
        self.operator = None

    def endpoint(self, address):
        return Endpoint(address, self.bucket)

    def waited_for(self, seconds):
        return []

    def name_of(self, address):
        return address

    async def identified(self, addresses):
        return list(dict.fromkeys(addresses))

    def admin(self, address):
        return self.nodes.get(address) or FakeNode(address)

    def of(self, bucket):
        return self

    async def survey(self, seeds, *, without=()):
        self.surveyed.append((tuple(seeds), tuple(without)))
        return self.found

    async def view(self, address):
        node = self.nodes[address]
        if node.is_gone:
            return NodeView(address, error="connection refused")
        return NodeView(
            address,
            map=None if node.given is None else ClusterMap.from_json(node.given, address),
            version=(1, 3),
            vbuckets=node.vbuckets,
            states=node.held,
            seqnos=node.high,
            complete=node.high | node.within,
            damaged=node.damage,
            items=dict.fromkeys(node.held, 5),
        )

    async def send(self, wanted, *, first=(), also=(), instead=NO_OTHERS):
        self.sent.append(wanted)
        self.calls.append(("map", wanted.rev))
        for node, own in instead.items():
            await self.tell(node, own)

    async def tell(self, address, wanted):
        self.admin(address)._do("map", wanted.version)

    async def set_states(self, address, wanted, forced=()):
        for vb, state in wanted.items():
            await self.admin(address).set_state(vb, state, force=vb in forced)

    async def delete(self, address, vbuckets):
        for vb in vbuckets:
            await self.admin(address).delete(vb)

    async def logs(self, address, vbuckets):
        return {vb: await self.admin(address).failover_log(vb) for vb in vbuckets}


class FakeConnection:
    """A connection whose ends answer every question with the next of `statuses`, success when there is none.

    `asked`: (side, frame) of each question. `listeners`: as in a ProxiedConnection. `lose(error)` ends it.
    Made in a running loop.
    """

    def __init__(self, name="a connection"):
        self.name, self.asked, self.statuses, self.listeners = name, [], [], {}
        down = SimpleNamespace(
            changes=np.zeros(VBUCKET_NUMBERS, np.int64), change_bytes=np.zeros(VBUCKET_NUMBERS, np.int64)
        )
        lost = asyncio.get_running_loop().create_future()
        self.proxy = SimpleNamespace(lost=lost, down=down, fallen=None, refused=None, ask=self._ask, close=self.close)
        self.refuses_delete_times = False

    async def _ask(self, side, frame, _seconds):
        self.asked.append((side, frame))
        return response(frame, self.statuses.pop(0) if self.statuses else Status.SUCCESS)

    @property
    def is_open(self):
        return not self.proxy.lost.done()

    @property
    def is_idle(self):
        return not self.listeners

    def lose(self, error):
        self.proxy.lost.set_result(error)

    def close(self):
        if self.is_open:
            self.lose(ConnectionLost("the mover", "closed the connection"))

    def listen(self, vb, listener):
        self.listeners[vb] = listener

    def stop_listening(self, vb):
        return self.listeners.pop(vb, None) is not None

    async def add_stream(self, vb, flags):
        self.asked.append(("add", vb, int(flags)))

    async def close_stream(self, vb):
        self.asked.append(("close", vb))


async def turns(count=10):
    """Let the others run."""
    for _ in range(count):
        await asyncio.sleep(0)
