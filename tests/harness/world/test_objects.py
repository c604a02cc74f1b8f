"""The object store of a simulated world, asked by the product's own class."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from harness.simulation.scheduler import Schedule
from harness.simulation.sockets import Network
from harness.world.blocking import BlockingProgram
from harness.world.objects import ObjectServer, served
from harness.world.system import simulated
from headwater.backup.place import place_of
from headwater.errors import HeadwaterError
from headwater.lake.objects import ObjectStore


class Shop:
    """A store, and processes that ask it."""

    def __init__(self) -> None:
        self.schedule = Schedule(1)
        self.network = Network(self.schedule)
        self.server = ObjectServer(self.schedule)

    def run(self, work: Callable[[], object], seconds: float = 60.0) -> BlockingProgram:
        program = BlockingProgram(self.schedule, self.network, "p", work)
        self.schedule.run(seconds, lambda: program.is_over)
        return program


@pytest.fixture(name="shop")
def a_shop() -> Iterator[Shop]:
    shop = Shop()
    with simulated(shop.schedule, shop.network, {}), served(shop.server):
        yield shop


def test_the_products_stores_and_places_keep_their_objects_there(shop: Shop) -> None:
    def works() -> list[object]:
        store, place = ObjectStore("s3://lake/table"), place_of("s3://lake/copies")
        place.write("a/b.json", b"{}")
        made = store.create("_delta_log/0.json", b"first"), store.create("_delta_log/0.json", b"second")
        return [*made, store.read("_delta_log/0.json"), store.folders(), place.names("a"), place.size("a/b.json")]

    found = shop.run(works)
    assert found.error is None
    assert found.result == [True, False, b"first", ("_delta_log",), ["b.json"], 2]
    assert ObjectStore("s3://lake/table").read("_delta_log/0.json") == b"first", "the harness reads it at once"


def test_requests_take_time_and_who_is_killed_may_have_made_a_change(shop: Shop) -> None:
    def works() -> None:
        for number in range(1000):
            ObjectStore("s3://lake/table").write(f"{number}", b"")

    program = shop.run(works, seconds=1.0)
    program.kill()
    assert 10 < len(shop.server.held) < 1000
    shop.schedule.run(10.0)
    assert len(shop.server.held) < 1000


def test_a_change_whose_answer_was_lost_is_there_or_not(shop: Shop) -> None:
    shop.server.lost = 0.5
    heard: list[tuple[bool, bool]] = []

    def works() -> None:
        for number in range(40):
            try:
                ObjectStore("s3://lake/table").write(f"{number}", b"")
            except HeadwaterError:
                heard.append((False, f"lake/table/{number}" in shop.server.held))
            else:
                heard.append((True, f"lake/table/{number}" in shop.server.held))

    assert shop.run(works).error is None
    assert {*heard} == {(True, True), (False, True), (False, False)}
    assert shop.server.counts["answers of object stores lost"] > 10
