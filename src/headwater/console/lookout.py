"""The answers of a bucket's nodes, asked for at most so often, with the moment at which each was given.

Several pages and browsers look at the same nodes; each answer is kept for a moment and shared. A node that does not
answer keeps the last answer it gave, and its age with it: a page shows both, and no page shows a number that nobody
said.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headwater.client.routing import Address, ClusterMap, Target
from headwater.cluster.members import Members
from headwater.cluster.survey import NodeView, Survey
from headwater.errors import (
    AuthError,
    ClusterError,
    HeadwaterError,
    RemoteProtocolError,
    StatusError,
    TransportError,
    hide_logins,
)
from headwater.wire.cluster_map import NOBODY
from headwater.wire.privilege import EVERYTHING
from headwater.wire.vbucket import State

SURVEY_SECONDS = 4.0
"""A survey makes each node count all its vbuckets, so it is not asked for more often."""
FIGURES_SECONDS = 1.5
STREAMS_SECONDS = 2.5
RIGHTS_SECONDS = 15.0
REFUSED_SECONDS = 60.0
"""How long nobody is asked after a login was refused: a node writes each one down, and answers the next ever later."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Said(Generic[Answer]):
    """An answer, and how it stands now.

    Attributes:
        answer: the last one; None if there never was one.
        at: when it came, Unix seconds; 0 for never.
        problem: why a later question was not answered; empty while the answer is the latest.
        seconds: how long it took to come.
    """

    answer: Answer | None = None
    at: float = 0.0
    problem: str = ""
    seconds: float = 0.0

    @property
    def is_fresh(self) -> bool:
        """True if this is the answer to the latest question."""
        return self.answer is not None and not self.problem


@dataclass(frozen=True, slots=True)
class Look:
    """All nodes at one moment.

    Attributes:
        survey: the members, and the seeds that are none.
        in_cluster: whether the map was given to the nodes; without, a node that stands alone has one of its own making.
        known: of nodes that do not answer now, what they said last, and when (Unix seconds).
    """

    survey: Survey
    in_cluster: bool
    known: Mapping[Address, tuple[NodeView, float]] = field(default_factory=dict)


@dataclass(slots=True)
class _Kept(Generic[Answer]):
    said: Said[Answer] = field(default_factory=Said)
    asked_at: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Lookout:
    """Asks the nodes of one bucket; made in the event loop that uses it.

    Args:
        target: the seeds, the bucket, TLS. user, password: who asks.
        clock, wall: seconds, monotonic and Unix.
    """

    def __init__(
        self,
        target: Target,
        user: str | None = None,
        password: str | None = None,
        *,
        timeout_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.target = target
        self.members = Members(target.bucket, user, password, tls=target.tls, timeout_seconds=timeout_seconds)
        self._clock, self._wall = clock, wall
        self._look: _Kept[Look] = _Kept()
        self._groups: dict[tuple[Address, str], _Kept[Mapping[str, str]]] = {}
        self._seen: dict[Address, tuple[NodeView, float]] = {}
        self._refusal, self._refused_until = "", float("-inf")

    async def close(self) -> None:
        """Close the connections."""
        await self.members.__aexit__()

    def now(self) -> float:
        """The time by which answers are dated, Unix seconds."""
        return self._wall()

    @property
    def latest(self) -> Look | None:
        """The last look there was; asks nobody."""
        return self._look.said.answer

    async def look(self, seconds: float = SURVEY_SECONDS) -> Said[Look]:
        """Look at all nodes, as they were at most so many seconds ago; the last look there was if no node answers."""
        return await self._fresh(self._look, seconds, self._take)

    async def stats(self, address: Address, group: str, seconds: float = FIGURES_SECONDS) -> Said[Mapping[str, str]]:
        """A group of statistics of one node."""
        kept = self._groups.setdefault((address, group), _Kept())
        return await self._fresh(kept, seconds, lambda: self.members.admin(address).stats(group))

    async def stats_by_node(
        self, group: str, seconds: float = FIGURES_SECONDS
    ) -> dict[Address, Said[Mapping[str, str]]]:
        """Ask all members and seeds for a group of statistics."""
        return (await self.groups_by_node((group,), seconds))[group]

    async def groups_by_node(
        self, groups: Sequence[str], seconds: float = FIGURES_SECONDS
    ) -> dict[str, dict[Address, Said[Mapping[str, str]]]]:
        """Ask for several groups, each of the same nodes: who joins or leaves meanwhile is in all or in none."""
        nodes = await self.nodes()
        answers = iter(await asyncio.gather(*(self.stats(each, group, seconds) for group in groups for each in nodes)))
        return {group: {each: next(answers) for each in nodes} for group in groups}

    async def nodes(self) -> list[Address]:
        """The members and seeds, by the names of the map."""
        look = self._look.said if self._look.said.answer is not None else await self.look()
        return list(look.answer.survey.nodes) if look.answer is not None else self._known_seeds()

    async def rights(self) -> frozenset[str] | None:
        """The names of the user's privileges; None where no node tells (it may be of another kind, or away)."""
        for said in (await self.stats_by_node("rights", RIGHTS_SECONDS)).values():
            if said.is_fresh and said.answer is not None:
                return frozenset(name for name, told in said.answer.items() if told == "true")
        return None

    async def logs(self, address: Address, vbucket: int) -> list[tuple[int, int]]:
        """The failover log of a node's copy of a vbucket, newest branch first.

        Raises:
            TransportError, StatusError: as NodeAdmin.
        """
        return await self.members.admin(address).failover_log(vbucket)

    # ------------------------------------------------------------------ inside

    async def _fresh(self, kept: _Kept[Answer], seconds: float, ask: Callable[[], Awaitable[Answer]]) -> Said[Answer]:
        """Ask, unless the latest question is recent; whoever comes while somebody asks gets the same answer."""
        began = self._clock()
        async with kept.lock:
            if self._clock() - kept.asked_at < seconds or kept.asked_at > began:
                return kept.said
            asked_at = self._clock()
            if asked_at < self._refused_until:
                return Said(kept.said.answer, kept.said.at, self._refusal)
            try:
                answer = await ask()
                kept.said = Said(answer, self._wall(), "", self._clock() - asked_at)
            except (TransportError, StatusError, RemoteProtocolError, ClusterError) as error:
                kept.said = Said(kept.said.answer, kept.said.at, plain(error))
                if isinstance(error, AuthError):
                    self._refusal = f"{plain(error)} (the login is tried again once a minute)"
                    self._refused_until = self._clock() + REFUSED_SECONDS
            kept.asked_at = self._clock()
            return kept.said

    async def _take(self) -> Look:
        try:
            survey, in_cluster = await self.members.survey(self._known_seeds()), True
        except ClusterError:
            survey, in_cluster = await self._alone(), False
        now = self._wall()
        self._seen |= {address: (view, now) for address, view in survey.nodes.items() if view.answers}
        known = {address: self._seen[address] for address, view in survey.nodes.items() if _is_away(view, self._seen)}
        return Look(survey, in_cluster, known)

    def dialled(self) -> list[Address]:
        """Where the seeds and the members of the last map are called: by their ports for TLS, if that is spoken."""
        said = self._look.said.answer
        members = said.survey.map.servers if said is not None else ()
        return list(dict.fromkeys([*self.target.seeds, *(self.members.endpoint(each).dialled for each in members)]))

    def _known_seeds(self) -> list[Address]:
        """The seeds, and the members of the last map: one of them may live when all seeds are gone."""
        said = self._look.said.answer
        seeds = map(self.members.named, self.target.seeds)
        return list(dict.fromkeys([*seeds, *(said.survey.map.servers if said is not None else ())]))

    async def _alone(self) -> Survey:
        """Look at nodes that are in no cluster: each has a map of its own making, the first one's is shown.

        Raises:
            ClusterError: none of them answers.
        """
        seeds = await self.members.identified(self._known_seeds())
        views = {each: await self.members.view(each) for each in seeds}
        answering = next((view for view in views.values() if view.answers), None)
        if answering is None:
            told = "; ".join(f"{address}: {view.error}" for address, view in views.items())
            raise ClusterError(told, "start it, or name a node that runs")
        config = await self.members.admin(answering.address).config()
        if config is None:
            return Survey(_made_up(self.target.bucket, answering), views)
        return Survey(ClusterMap.from_json(config, answering.address), views)


def _made_up(bucket: str, view: NodeView) -> ClusterMap:
    """The map of a server that hands out none: it owns the vbuckets that it has active."""
    count = max(view.states, default=0) + 1
    chains = tuple((0 if view.states.get(vb) is State.ACTIVE else NOBODY,) for vb in range(count))
    return ClusterMap(bucket, "", 0, 0, (view.address,), chains)


def _is_away(view: NodeView, seen: Mapping[Address, object]) -> bool:
    return not view.answers and view.address in seen


def plain(error: HeadwaterError) -> str:
    """An error as one line that may be shown: no login in it."""
    return hide_logins(" ".join(str(error).split()))


def all_rights() -> frozenset[str]:
    """The names of all privileges: what is offered where no node tells, which refuses what it does not allow."""
    names = [(each.name or "").lower() for each in EVERYTHING]
    return frozenset([*names, *(f"{name}_somewhere" for name in names)])
