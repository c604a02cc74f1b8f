"""The guests of a world with users: each writes and reads keys of its own and follows all changes, as far as its rights
go.

rights.py changes the rights of each, and judges the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Protocol

from harness.linearizability.record import Argument, Kind, Operation, Outcome, Recorder, text_of
from harness.simulation.scheduler import NOON_SECONDS
from harness.world.programs import Program, ProgramsWorld
from harness.world.readers import WorldReader
from harness.world.rights import Guest, RightsOperator, check_operations, check_shown
from harness.world.workload import Login, Purpose, WorkloadClient, WorldKey

if TYPE_CHECKING:
    from harness.simulation.histories import Change
    from harness.world.machines import Machine
    from harness.world.plan import WorldPlan
    from harness.world.steps import Step
    from harness.world.watcher import Watcher

GUESTS = 2
KEYS = 3
PAUSE_SECONDS = 0.15
KINDS = {Kind.GET: 5, Kind.SET: 4, Kind.ADD: 1, Kind.DELETE: 1}
FIRST_NUMBER = 100
"""The number of the first guest among all clients."""


class GuestsWorld(ProgramsWorld, Protocol):
    """The parts of a world that are needed here."""

    plan: WorldPlan
    machines: list[Machine]
    watcher: Watcher
    recorder: Recorder

    def now(self) -> float:
        """Return Unix seconds."""

    def next_number(self) -> int:
        """Return a unique number."""

    def vbucket_of(self, key: str) -> int:
        """Return the vbucket of a key."""


class GuestClient(WorkloadClient):
    """A client whose login may have been changed or removed."""

    guest: Guest

    @property
    def login(self) -> Login:
        """Return the name and the password that the guest was given last."""
        return self.guest.name, self.guest.password

    async def run(self, operations: int, pause_seconds: float) -> None:
        """Send requests for ever, with pauses."""
        while True:
            await self.step()
            await asyncio.sleep(self._random.expovariate(1 / pause_seconds))

    async def step(self) -> None:
        """Send one request for a key of the guest; after a refusal, log in anew now and then."""
        kind = self._random.choices(list(KINDS), list(KINDS.values()))[0]
        key = self._random.choice(self._keys)
        value = f"v{self._next_value()}-" if kind in {Kind.SET, Kind.ADD} else ""
        result = await self.do(key, kind, Argument(value=value))
        if result.outcome in {Outcome.REFUSED, Outcome.MAYBE} and self._random.random() < 0.3:
            self.leave()


class GuestReader(WorldReader):
    """A reader whose login may have been changed or removed."""

    guest: Guest

    @property
    def login(self) -> Login:
        """Return the name and the password that the guest was given last."""
        return self.guest.name, self.guest.password


class Guests:
    """All guests of a world.

    Attributes:
        guests: the history of the rights of each.
        shown: the changes that streams showed them: guest, time, key, value.
    """

    def __init__(self, world: GuestsWorld, random: Random) -> None:
        self.guests = [Guest(f"guest-{at}", "none yet") for at in range(GUESTS)]
        self.shown: list[tuple[Guest, float, bytes, bytes]] = []
        self._world, self._random = world, random
        self._operator = RightsOperator(world.addresses, self.guests, lambda: world.schedule.now)
        self._programs: list[Program] = []

    def begin(self) -> None:
        """Start all clients and readers."""
        world, seeds = self._world, [str(address) for address in self._world.addresses]
        for at, guest in enumerate(self.guests):
            keys = [WorldKey(b"%s-%d" % (guest.name.encode(), n), Purpose.REGISTER, False) for n in range(KEYS)]
            client = GuestClient(
                FIRST_NUMBER + at,
                seeds,
                keys,
                recorder=world.recorder,
                random=self._chance(),
                now=world.now,
                next_value=world.next_number,
            )
            reader = GuestReader(
                f"{guest.name}-reader", seeds, world.plan.vbuckets, self._chance(), partial(self._show, guest)
            )
            client.guest = reader.guest = guest
            self._programs.append(world.run(guest.name, partial(client.run, 0, PAUSE_SECONDS)))
            self._programs.append(world.run(reader.name, reader.run))

    def change(self, step: Step) -> Callable[[], None] | None:
        """Let an operator change the rights of a guest; return the function that kills the operator, None for one that
        is to live.
        """
        world = self._world
        node = world.addresses[step.node]
        name = f"rights-{world.next_number()}"
        started = world.run(name, partial(self._operator.change, node, self._chance()))

        def kill() -> None:
            world.counts["operators killed"] += not started.is_over
            started.kill()

        return kill if step.lasts else None

    def end(self) -> None:
        """End all clients and readers; an error of one fails the run."""
        for program in self._programs:
            if program.error is not None:
                raise program.error
            program.kill()

    def judge(self) -> None:
        """Judge all answers that guests got."""
        world = self._world
        nodes = [machine.address for machine in world.machines]
        operations = list(self._operations())
        looked_at = check_operations(self.guests, operations, nodes, noon=NOON_SECONDS, is_stored=self._is_stored)
        written = {
            (operation.key, operation.argument.value): operation.called - NOON_SECONDS
            for operation in world.recorder.history().operations
        }
        for guest, at, key, value in self.shown:
            when = written.get((text_of(key), text_of(value)))
            if when is not None:
                check_shown(guest, nodes, when, at, (key, value))
        changes = [change for guest in self.guests for change in guest.changes]
        world.counts["changes of rights acknowledged"] += sum(change.ended is not None for change in changes)
        world.counts["answers to guests"] += looked_at
        world.counts["guests refused"] += sum(each.outcome is Outcome.REFUSED for _, each in operations)
        world.counts["changes shown to guests"] += len(self.shown)

    def _chance(self) -> Random:
        return Random(self._random.getrandbits(64))  # noqa: S311 - must be repeatable

    def _operations(self) -> Iterator[tuple[Guest, Operation]]:
        for operation in self._world.recorder.history().operations:
            if FIRST_NUMBER <= operation.client < FIRST_NUMBER + GUESTS:
                yield self.guests[operation.client - FIRST_NUMBER], operation

    def _is_stored(self, key: str, value: str) -> bool:
        known = self._world.watcher.branches.is_sent
        return known(self._world.vbucket_of(key), key.encode("latin-1"), value.encode("latin-1"))

    def _show(  # noqa: PLR0917 - as readers tell it
        self, guest: Guest, who: str, vb: int, log: tuple[tuple[int, int], ...], seqno: int, change: Change
    ) -> None:
        self._world.watcher.branches.shown(who, vb, log, seqno, change)
        if change.value is not None:
            self.shown.append((guest, self._world.schedule.now, change.key, change.value))
