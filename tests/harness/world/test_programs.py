"""Programs that run in a world, end, and are killed."""

import asyncio

from harness.simulation.scheduler import Schedule
from harness.simulation.sockets import Network
from harness.world.programs import Program


async def fails() -> None:
    raise ValueError("no")


async def answers() -> int:
    await asyncio.sleep(1)
    return 42


def test_a_program_ends_with_its_result_or_its_error() -> None:
    schedule = Schedule(1)
    network = Network(schedule)
    good, bad = (Program(schedule, network, name, work) for name, work in (("good", answers), ("bad", fails)))
    schedule.run(0.5)
    assert (good.is_over, good.error, bad.is_over) == (False, None, True)
    assert isinstance(bad.error, ValueError)
    schedule.run(1.0)
    assert (good.is_over, good.result, schedule.failures) == (True, 42, [])


def test_a_program_that_is_killed_goes_no_further() -> None:
    schedule = Schedule(1)
    program = Program(schedule, Network(schedule), "p", answers)
    schedule.run(0.5)
    program.kill()
    schedule.run(5.0)
    assert (program.is_over, program.is_killed, program.result, program.error) == (True, True, None, None)
