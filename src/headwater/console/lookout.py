"""The answers of a bucket's nodes, requested at a limited rate, each with its time.

Several pages and browsers show the same nodes; each answer is kept for a moment and shared. For a node that does not
answer, its last answer is kept with its age: a page shows both, and no page shows a number that no node reported.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

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
"""The interval of surveys; a survey makes each node count all its vbuckets."""
FIGURES_SECONDS = 1.5
STREAMS_SECONDS = 2.5
RIGHTS_SECONDS = 15.0
REFUSED_SECONDS = 60.0
"""The pause after a refused login: a node logs each one, and answers the next one later each time."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class TimedAnswer(Generic[Answer]):
    """The last answer to a request, and whether it is fresh.

    Attributes:
        answer: the last one; None if there never was one.
        at: time of the answer, Unix seconds; 0 for never.
        problem: why a later request was not answered; empty while the answer is the latest.
        seconds: how long the answer took.
    """

    answer: Answer | None = None
    at: float = 0.0
    problem: str = ""
    seconds: float = 0.0

    @property
    def is_fresh(self) -> bool:
        """True if this is the answer to the latest request."""
        return self.answer is not None and not self.problem


@dataclass(frozen=True, slots=True)
class Look:
    """All nodes at one time.

    Attributes:
        survey: the members, and the seeds that are not members.
        in_cluster: True if the nodes have a cluster's map; a node that stands alone makes its own.
        known: for nodes that do not answer now, their last view and its time (Unix seconds).
    """

    survey: Survey
    in_cluster: bool
    known: Mapping[Address, tuple[NodeView, float]] = field(default_factory=dict)


@dataclass(slots=True)
class _CachedAnswer(Generic[Answer]):
    said: TimedAnswer[Answer] = field(default_factory=TimedAnswer)
    asked_at: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Lookout:
    """The source of one bucket's answers; created in the event loop that uses it.

    Args:
        target: the seeds, the bucket, TLS. user, password: the login.
        clock, wall: return seconds, monotonic and Unix.
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
        self.members: Final = Members(target.bucket, user, password, tls=target.tls, timeout_seconds=timeout_seconds)
        self._clock, self._wall = clock, wall
        self._look: _CachedAnswer[Look] = _CachedAnswer()
        self._groups: dict[tuple[Address, str], _CachedAnswer[Mapping[str, str]]] = {}
        self._views: dict[Address, tuple[NodeView, float]] = {}
        self._refusal, self._refused_until = "", float("-inf")

    async def close(self) -> None:
        """Close the connections."""
        await self.members.__aexit__()

    def now(self) -> float:
        """Return the time with which answers are dated, Unix seconds."""
        return self._wall()

    @property
    def latest(self) -> Look | None:
        """The last look; None if there was none. Sends no request."""
        return self._look.said.answer

    async def look(self, seconds: float = SURVEY_SECONDS) -> TimedAnswer[Look]:
        """Return a look at all nodes that is at most `seconds` old; the last one if no node answers."""
        return await self._fresh_answer(self._look, seconds, self._take)

    async def stats(
        self, address: Address, group: str, seconds: float = FIGURES_SECONDS
    ) -> TimedAnswer[Mapping[str, str]]:
        """Return a group of statistics of one node."""
        cached = self._groups.setdefault((address, group), _CachedAnswer())
        return await self._fresh_answer(cached, seconds, lambda: self.members.admin(address).stats(group))

    async def stats_by_node(
        self, group: str, seconds: float = FIGURES_SECONDS
    ) -> dict[Address, TimedAnswer[Mapping[str, str]]]:
        """Return a group of statistics of all members and seeds."""
        return (await self.groups_by_node((group,), seconds))[group]

    async def groups_by_node(
        self, groups: Sequence[str], seconds: float = FIGURES_SECONDS
    ) -> dict[str, dict[Address, TimedAnswer[Mapping[str, str]]]]:
        """Return several groups of statistics, each of the same nodes: a node that joins or leaves meanwhile is in all
        or in none.
        """
        nodes = await self.nodes()
        answers = iter(await asyncio.gather(*(self.stats(node, group, seconds) for group in groups for node in nodes)))
        return {group: {node: next(answers) for node in nodes} for group in groups}

    async def nodes(self) -> list[Address]:
        """Return the members and seeds, with their names in the map."""
        latest = self._look.said if self._look.said.answer is not None else await self.look()
        return list(latest.answer.survey.nodes) if latest.answer is not None else self._known_seeds()

    async def rights(self) -> frozenset[str] | None:
        """Return the names of the user's privileges; None if no node reports them."""
        for answer in (await self.stats_by_node("rights", RIGHTS_SECONDS)).values():
            if answer.is_fresh and answer.answer is not None:
                return frozenset(name for name, value in answer.answer.items() if value == "true")
        return None

    async def logs(self, address: Address, vbucket: int) -> list[tuple[int, int]]:
        """Return the failover log of a node's copy of a vbucket, newest branch first.

        Raises:
            TransportError, StatusError: as NodeAdmin.
        """
        return await self.members.admin(address).failover_log(vbucket)

    # ------------------------------------------------------------------ inside

    async def _fresh_answer(
        self, cached: _CachedAnswer[Answer], seconds: float, ask: Callable[[], Awaitable[Answer]]
    ) -> TimedAnswer[Answer]:
        """Return the kept answer if it was requested less than `seconds` ago; else call `ask`.

        Callers that come during a request share its answer. After a failure the last answer is returned with the
        problem.
        """
        began = self._clock()
        async with cached.lock:
            if self._clock() - cached.asked_at < seconds or cached.asked_at > began:
                return cached.said
            asked_at = self._clock()
            if asked_at < self._refused_until:
                return TimedAnswer(cached.said.answer, cached.said.at, self._refusal)
            try:
                answer = await ask()
                cached.said = TimedAnswer(answer, self._wall(), "", self._clock() - asked_at)
            except (TransportError, StatusError, RemoteProtocolError, ClusterError) as error:
                cached.said = TimedAnswer(cached.said.answer, cached.said.at, plain(error))
                if isinstance(error, AuthError):
                    self._refusal = f"{plain(error)} (the login is tried again once a minute)"
                    self._refused_until = self._clock() + REFUSED_SECONDS
            cached.asked_at = self._clock()
            return cached.said

    async def _take(self) -> Look:
        try:
            survey, in_cluster = await self.members.survey(self._known_seeds()), True
        except ClusterError:
            survey, in_cluster = await self._standalone_survey(), False
        now = self._wall()
        self._views |= {address: (view, now) for address, view in survey.nodes.items() if view.answers}
        known_views = {
            address: self._views[address] for address, view in survey.nodes.items() if _is_away(view, self._views)
        }
        return Look(survey, in_cluster, known_views)

    def dialled(self) -> list[Address]:
        """Return the addresses for connections to the seeds and the last map's members; with TLS they have the ports
        for TLS.
        """
        last_look = self._look.said.answer
        members = last_look.survey.map.servers if last_look is not None else ()
        return list(dict.fromkeys([*self.target.seeds, *(self.members.endpoint(member).dialled for member in members)]))

    def _known_seeds(self) -> list[Address]:
        """Return the seeds, and the members of the last map: one of these may be alive when all seeds are gone."""
        last_look = self._look.said.answer
        seeds = map(self.members.name_of, self.target.seeds)
        return list(dict.fromkeys([*seeds, *(last_look.survey.map.servers if last_look is not None else ())]))

    async def _standalone_survey(self) -> Survey:
        """Return a survey of nodes that are in no cluster: each has a map of its own, of which the first is used.

        Raises:
            ClusterError: none of them answers.
        """
        seeds = await self.members.identified(self._known_seeds())
        views = {seed: await self.members.view(seed) for seed in seeds}
        answering = next((view for view in views.values() if view.answers), None)
        if answering is None:
            errors = "; ".join(f"{address}: {view.error}" for address, view in views.items())
            raise ClusterError(errors, "start it, or name a node that runs")
        config = await self.members.admin(answering.address).config()
        if config is None:
            return Survey(_made_up(self.target.bucket, answering), views)
        return Survey(ClusterMap.from_json(config, answering.address), views)


def _made_up(bucket: str, view: NodeView) -> ClusterMap:
    """Return a map for a server without one, by which it owns its active vbuckets."""
    count = max(view.states, default=0) + 1
    chains = tuple((0 if view.states.get(vb) is State.ACTIVE else NOBODY,) for vb in range(count))
    return ClusterMap(bucket, "", 0, 0, (view.address,), chains)


def _is_away(view: NodeView, last_views: Mapping[Address, object]) -> bool:
    return not view.answers and view.address in last_views


def plain(error: HeadwaterError) -> str:
    """Return an error's message as one line for a page; names and passwords in urls are hidden."""
    return hide_logins(" ".join(str(error).split()))


def all_rights() -> frozenset[str]:
    """Return the names of all privileges: pages offer everything if no node reports the user's, and nodes refuse what
    they must.
    """
    names = [(each.name or "").lower() for each in EVERYTHING]
    return frozenset([*names, *(f"{name}_somewhere" for name in names)])
