"""The lake's mirror of a simulated cluster: each version of its table is judged, and a wrong one is found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest

from harness.linearizability.record import Argument, Kind, Outcome, Result
from harness.simulation.histories import Broken
from harness.world.blocking import BlockingProgram
from harness.world.mirror import ROOT, Lake
from harness.world.steps import Fault, Step
from harness.world.world import World
from tests.harness.world.resting import resting

STEPS = (
    Step(0.1, Fault.MIRROR, 0, 1, 0.0, 0.5),
    Step(1.0, Fault.MIRROR, 0, 1, 0.2, 0.5),
    Step(1.4, Fault.FAILOVER, 0, 1, 0.0, 0.5),
    Step(1.6, Fault.LOST_ANSWERS, 0, 1, 0.5, 0.3),
    Step(2.0, Fault.MIRROR, 0, 1, 0.1, 0.5),
)


@pytest.fixture(name="world", scope="module")
def a_world_at_rest() -> Iterator[World]:
    with resting(120, STEPS) as world:
        world.job(Lake).check()
        yield world


def test_a_mirror_that_is_killed_and_started_again_has_states_of_the_bucket_alone(world: World) -> None:
    assert world.counts["mirrors killed"] == 2
    assert world.counts["versions of the table judged"] == world.job(Lake).versions > 3


def test_a_document_that_expires_behind_the_mirrors_last_run_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    completed = Lake._completed

    def slow(lake: Lake, program: BlockingProgram) -> None:
        completed(lake, program)
        lake._world.schedule.run(10.0 if program.name.startswith("last-mirror") else 0.0)

    monkeypatch.setattr(Lake, "_completed", slow)
    with resting(40, STEPS[:1]) as world:
        key, argument = world.clients[0]._keys[0], Argument(value="v1-", expiry=int(world.now()) + 8)
        written = world.complete("writer", partial(world.clients[0].do, key, Kind.SET, argument), 10.0)
        assert isinstance(written, Result) and written.outcome is Outcome.DONE
        world.job(Lake).check()


def test_a_version_that_is_no_state_of_the_bucket_is_found(world: World) -> None:
    lake = world.job(Lake)
    rows = lake._rows(lake._state.files.values())
    lake._compare(rows)
    rows.pop(next(iter(rows)))
    with pytest.raises(Broken, match=r"^lake: version \d+ has vbucket .* of 1 documents another version"):
        lake._compare(rows)


def test_a_version_that_names_a_file_which_is_not_there_is_found(world: World) -> None:
    number = world.job(Lake)._state.version + 1
    added = {"path": "gone.parquet", "size": 1, "partitionValues": {}, "dataChange": True, "modificationTime": 0}
    world.store.pipe_file(f"{ROOT}/_delta_log/{number:020}.json", json.dumps({"add": added}).encode())
    with pytest.raises(Broken, match=r"^lake: version \d+ names gone.parquet, which is not there"):
        world.job(Lake).check()
