"""Clients of a world: which operations they ask, and what they note down."""

from collections import Counter
from dataclasses import replace
from functools import partial
from random import Random
from unittest import mock

from harness.linearizability.record import Argument, Kind, Level, Outcome, Result
from harness.world.plan import plan_of
from harness.world.run import run
from harness.world.system import simulated, unwatched
from harness.world.workload import HAVE_LEVEL, Purpose, WorldKey, keys_of
from harness.world.world import World
from headwater.errors import BucketNotFound


def test_keys_have_purposes_and_most_are_written_durably() -> None:
    found = keys_of(Random(1), 300)
    assert {key.purpose for key in found} == set(Purpose)
    assert 150 < sum(key.is_durable for key in found) < 250


def test_all_kinds_of_operations_are_asked_and_durable_ones_at_each_level() -> None:
    operations = [
        operation
        for seed in (5, 6, 7)
        for operation in run(replace(plan_of(seed, 300), steps=(), keys=20)).history.operations
    ]
    kinds = Counter(operation.kind for operation in operations)
    assert set(kinds) == set(Kind)
    levels = Counter(operation.argument.level for operation in operations if operation.kind in HAVE_LEVEL)
    assert set(levels) == set(Level)


def test_an_operation_is_noted_with_its_answer_and_who_gave_it() -> None:
    with unwatched():
        world = World(plan_of(3, 20))
        with simulated(world.schedule, world.network, {}):
            world.begin()
            client, key = world.clients[0], WorldKey(b"k", Purpose.REGISTER, is_durable=True)
            set_it = partial(client.do, key, Kind.SET, Argument(value="v", level=Level.MAJORITY))
            written = world.complete("writer", set_it, 10)
            read = world.complete("reader", partial(client.do, key, Kind.GET, Argument()), 10)
            world.close()
    assert isinstance(written, Result) and isinstance(read, Result)
    assert written.outcome is Outcome.DONE and written.vb_uuid and written.seqno
    assert (read.value, read.cas) == ("v", written.cas)
    assert [operation.result for operation in world.recorder.history().operations] == [written, read]


def test_a_bucket_that_is_not_there_is_no_answer_about_a_document() -> None:
    with unwatched():
        world = World(plan_of(3, 20))
        with simulated(world.schedule, world.network, {}):
            world.begin()
            client, key = world.clients[0], WorldKey(b"k", Purpose.REGISTER, is_durable=False)
            work = partial(client.do, key, Kind.GET, Argument())
            world.complete("reader", work, 10)
            with mock.patch.object(client._cluster, "call", side_effect=BucketNotFound('select bucket "orders"')):
                refused = world.complete("another reader", work, 10)
            world.close()
    assert isinstance(refused, Result)
    assert refused.outcome is Outcome.REFUSED and "no such bucket" in refused.text
