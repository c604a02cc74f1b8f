from headwater.node.streams.outlet import OUTLET_BYTES, Outlet
from headwater.node.streams.round_robin import RoundRobin


class Teller:
    """Has so many bytes to say."""

    def __init__(self, name: str, left: int, log: list[str]) -> None:
        self.name, self.left, self.log = name, left, log

    @property
    def has_work(self) -> bool:
        return self.left > 0

    def take_turn(self, outlet: Outlet, quantum_bytes: int) -> None:
        size = min(self.left, quantum_bytes, outlet.room)
        self.left -= size
        outlet.fill(size)
        self.log.append(self.name)


class Sink:
    def send(self, data: bytes | bytearray | memoryview, gate: int = 0) -> None:
        self.size = len(data)


def begun() -> Outlet:
    outlet = Outlet()
    outlet.begin(Sink())
    return outlet


def test_all_have_a_turn_in_the_order_in_which_they_came() -> None:
    log: list[str] = []
    turns: RoundRobin[Teller] = RoundRobin()
    for name in "abc":
        turns.add(Teller(name, 10, log))
    turns.fill(begun())
    assert log == ["a", "b", "c"]
    assert not turns


def test_one_that_has_more_to_say_goes_to_the_back() -> None:
    log: list[str] = []
    turns: RoundRobin[Teller] = RoundRobin()
    turns.add(Teller("long", 2 * OUTLET_BYTES, log))
    turns.add(Teller("short", 10, log))
    for _ in range(4):
        turns.fill(begun())
    assert log == ["long", "short", "long", "long"]


def test_who_waits_already_keeps_its_place_and_who_leaves_has_none() -> None:
    log: list[str] = []
    turns: RoundRobin[Teller] = RoundRobin()
    first, second, gone = (Teller(name, 1, log) for name in ("first", "second", "gone"))
    for teller in (first, gone, second, first):
        turns.add(teller)
    turns.discard(gone)
    turns.discard(gone)
    turns.fill(begun())
    assert log == ["first", "second"]


def test_something_else_can_stop_them() -> None:
    log: list[str] = []
    turns: RoundRobin[Teller] = RoundRobin()
    turns.add(Teller("a", 1, log))
    turns.add(Teller("b", 1, log))
    turns.fill(begun(), lambda: bool(log))
    assert (log, bool(turns)) == (["a"], True)
    turns.clear()
    assert not turns
