"""Faults of a simulated world: the beginning of each step, and its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.simulation.host import Crash
from harness.simulation.sockets import Link
from harness.world.backups import Backups
from harness.world.mirror import Lake
from harness.world.operators import Work
from harness.world.orders_mirror import OrdersMirror
from harness.world.steps import WORKS, Fault, Step

if TYPE_CHECKING:
    from harness.world.world import World

Undo = Callable[[], None]
TENANTS_SHARE = 0.7
"""The share of the changes of rights that concern tenants, in a world that has some."""
KILLED_SECONDS = 0.3
"""The longest time from the beginning of a failover in the second bucket until its operator is killed."""


def begin(world: World, step: Step) -> Undo | None:
    """Begin a step; return the function that undoes it, None if it needs none or was left out."""
    if put_off := _put_off(world, step):
        world.counts[put_off] += 1
        return None
    if step.fault in _TO_PARTS:
        return _TO_PARTS[step.fault](world, step)
    if step.fault in WORKS:
        return world.employ(WORKS[step.fault], step.node, step.lasts)
    if step.fault in _TO_MACHINES:
        return _TO_MACHINES[step.fault](world, step)
    return _TO_LINKS[step.fault](world, world.name(step.node), world.place(step.node, step.other), step)


def _put_off(world: World, step: Step) -> str:
    """Return the reason for which a step is left out, as it is counted; "" if it is not."""
    if step.fault is Fault.FAILOVER and world.damage.is_put_off(step.node):
        return "failovers put off"
    if step.fault is Fault.FAILOVER and world.has_newest_map_alone(step.node):
        return "failovers put off: nobody else has the newest map"
    if step.fault is Fault.REMOVE and world.damage.is_removal_put_off(step.node):
        return "removals put off"
    if step.fault is Fault.ORDERS_FAILOVER and world.damage.is_put_off_in_the_second_bucket(step.node):
        return "failovers in the second bucket put off"
    if step.fault in {Fault.MAKE_BUCKET, Fault.DROP_BUCKET} and world.orders is not None:
        return "left to the operator of the second bucket"
    return ""


def _rights(world: World, step: Step) -> Undo | None:
    """Let an operator change the rights of a guest, or of a tenant where there are some."""
    if world.tenants is not None and step.amount < TENANTS_SHARE:
        return world.tenants.change(step)
    return None if world.guests is None else world.guests.change(step)


def _anew(world: World, step: Step) -> Undo | None:
    """Let an operator make the second bucket anew, under a mirror of it."""
    if world.orders is None:
        return None
    world.job(OrdersMirror).begin()
    return world.orders.anew(step)


def _orders_failover(world: World, step: Step) -> Undo:
    """Kill the process, and let an operator fail the node over, who is killed now and then."""
    world.crash(step.node, Crash.KILL if step.amount < 0.5 else Crash.POWER)
    kill = None if world.orders is None else world.orders.change_owners(Work.FAILOVER, step)
    if kill is not None and step.other == 0:
        world.schedule.after(step.amount * KILLED_SECONDS, kill)
    return lambda: world.start(step.node)


def _orders_add(world: World, step: Step) -> Undo | None:
    kill = None if world.orders is None else world.orders.change_owners(Work.ADD, step)
    return kill if step.lasts else None


def _crash(world: World, step: Step) -> Undo:
    world.crash(step.node, Crash.KILL if step.fault is Fault.KILL else Crash.POWER)
    return lambda: world.start(step.node)


def _pause(world: World, step: Step) -> None:
    world.machines[step.node].pause(step.lasts)


def _slow_disk(world: World, step: Step) -> Undo:
    world.machines[step.node].slow_down(0.02 + step.amount)
    return world.machines[step.node].repair


def _full_disk(world: World, step: Step) -> Undo:
    world.machines[step.node].fill(int(step.amount * 4096))
    return world.machines[step.node].repair


def _failing_disk(world: World, step: Step) -> None:
    world.machines[step.node].disk.fail(1 + int(step.amount * 20))


def _clock_jumps(world: World, step: Step) -> None:
    world.machines[step.node].clock.jump((step.amount - 0.5) * 2 * world.plan.clock_error_seconds)


def _clock_drifts(world: World, step: Step) -> Undo:
    clock = world.machines[step.node].clock
    clock.drift((step.amount - 0.5) * 0.2)
    return lambda: clock.drift(0.0)


def _link_is(link: Link) -> Callable[[World, str, str, Step], Undo]:
    def begin_it(world: World, one: str, other: str, _: Step) -> Undo:
        world.network.set_link(one, other, link)
        return lambda: world.network.set_link(one, other, Link.UP)

    return begin_it


def _one_way(world: World, one: str, other: str, step: Step) -> Undo:
    way = (one, other) if step.amount < 0.5 else (other, one)
    world.network.deaf.add(way)

    def undo() -> None:
        world.network.deaf.discard(way)
        world.network.go_on(one, other)

    return undo


def _slow_link(world: World, one: str, other: str, step: Step) -> Undo:
    pair = frozenset((one, other))
    world.network.slow[pair] = 0.05 + step.amount

    def undo() -> None:
        world.network.slow.pop(pair, None)

    return undo


def _reset(world: World, one: str, other: str, _: Step) -> None:
    world.network.cut(one, other)


def _duplicated(world: World, step: Step) -> Undo | None:
    """Hold back a sender's bytes to a machine, and reset its connections after half of the time.

    Requests that the sender repeats then arrive before the original ones.
    """
    network, machine = world.network, world.name(step.node)
    callers = network.callers(machine)
    if not callers:
        return None
    held = network.hold(callers[int(step.amount * len(callers))], machine)
    world.counts["connections duplicated"] += len(held)
    world.schedule.after(step.lasts / 2, lambda: network.lose(held))
    return lambda: network.release(held)


def _stop(world: World, step: Step) -> Undo | None:
    """Stop a process beside the nodes, and kill a node meanwhile now and then: it forgets who is at work on it."""
    if not world.stop(step) or step.other % 2:
        return None
    world.crash(step.node, Crash.KILL)
    world.schedule.after(step.lasts / 2, lambda: world.start(step.node))
    return None


def _back_up(world: World, step: Step) -> Undo | None:
    return world.job(Backups).begin(step)


def _mirror(world: World, step: Step) -> Undo | None:
    """Start the mirror, or kill it; that of the second bucket as well, now and then."""
    start = world.job(Lake).begin(step)
    if world.orders is None or world.plan.has_flips or step.other % 2:
        return start
    start_other = world.job(OrdersMirror).restart()

    def undo() -> None:
        start_other()
        if start is not None:
            start()

    return undo


def _lose_answers(world: World, step: Step) -> Undo:
    world.store.lost = step.amount * 0.3

    def undo() -> None:
        world.store.lost = 0.0

    return undo


_TO_PARTS: dict[Fault, Callable[[World, Step], Undo | None]] = {
    Fault.STOP: _stop,
    Fault.FLIP: lambda world, step: world.damage.begin(step),
    Fault.RIGHTS: _rights,
    Fault.ANEW: _anew,
    Fault.ORDERS_FAILOVER: _orders_failover,
    Fault.ORDERS_ADD: _orders_add,
    Fault.BACKUP: _back_up,
    Fault.FULL_BACKUP: _back_up,
    Fault.MIRROR: _mirror,
    Fault.LOST_ANSWERS: _lose_answers,
}
_TO_MACHINES: dict[Fault, Callable[[World, Step], Undo | None]] = {
    Fault.KILL: _crash,
    Fault.POWER: _crash,
    Fault.PAUSE: _pause,
    Fault.SLOW_DISK: _slow_disk,
    Fault.FULL_DISK: _full_disk,
    Fault.FAILING_DISK: _failing_disk,
    Fault.CLOCK_JUMPS: _clock_jumps,
    Fault.CLOCK_DRIFTS: _clock_drifts,
    Fault.DUPLICATED: _duplicated,
}
_TO_LINKS: dict[Fault, Callable[[World, str, str, Step], Undo | None]] = {
    Fault.STALLED: _link_is(Link.STALLED),
    Fault.DOWN: _link_is(Link.DOWN),
    Fault.ONE_WAY: _one_way,
    Fault.SLOW_LINK: _slow_link,
    Fault.RESET: _reset,
}
