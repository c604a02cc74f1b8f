"""The publisher: every change goes out once, together with those that waited, and never before an earlier one."""

import asyncio

import pytest

from headwater.cluster.members import NO_OTHERS, NewerMap
from headwater.cluster.publisher import OWN_MAPS_MAX, Publisher
from headwater.errors import ConnectionLost

from .views import A, B, C, a_map

START = a_map("A", "A", "A", "A", replicas=0)


class Nodes:
    """Stands for the members; notes what is sent, and holds it until `deliver`."""

    def __init__(self, refusal=None):
        self.sent, self.first, self.instead, self.refusal = [], [], [], refusal
        self._gate = asyncio.Event()

    def deliver(self):
        self._gate.set()

    async def send(self, wanted, *, first=(), also=(), instead=NO_OTHERS):
        self.sent.append(wanted)
        self.first.append(set(first))
        self.instead.append(dict(instead))
        await self._gate.wait()
        if self.refusal:
            raise self.refusal


async def turns(count=10):
    for _ in range(count):
        await asyncio.sleep(0)


def test_changes_that_come_while_a_map_is_on_its_way_leave_together_with_the_next():
    async def work():
        nodes = Nodes()
        publisher = Publisher(nodes, START)
        early = asyncio.create_task(publisher.change(0, (B, A)))
        await turns()
        late = [asyncio.create_task(publisher.change(vb, (C,), first=(C,))) for vb in (1, 2, 3)]
        await turns()
        assert len(nodes.sent) == 1 and not early.done()
        nodes.deliver()
        await asyncio.gather(early, *late)
        return nodes, publisher

    nodes, publisher = asyncio.run(work())
    assert [found.chains for found in nodes.sent] == [((1, 0), (0,), (0,), (0,)), ((1, 0), (2,), (2,), (2,))]
    assert [found.rev for found in nodes.sent] == [8, 9] and nodes.first == [set(), {C}]
    assert publisher.current == nodes.sent[-1]


def test_whoever_waits_for_a_change_hears_that_a_node_did_not_take_it():
    async def work():
        nodes = Nodes(ConnectionLost("node-b:11210", "refused"))
        nodes.deliver()
        publisher = Publisher(nodes, START)
        results = await asyncio.gather(*(publisher.change(vb, (B,)) for vb in (0, 1)), return_exceptions=True)
        assert all(isinstance(result, ConnectionLost) for result in results)
        nodes.refusal = None
        await publisher.change(2, (C,))
        return nodes

    nodes = asyncio.run(work())
    assert nodes.sent[-1].chains == ((1,), (1,), (2,), (0,))  # what was not taken is in the next one


def test_one_who_gives_up_takes_nobody_elses_change_with_him():
    async def work():
        nodes = Nodes()
        publisher = Publisher(nodes, START)
        one, other = (asyncio.create_task(publisher.change(vb, (B,))) for vb in (0, 1))
        await turns()
        one.cancel()
        nodes.deliver()
        await other
        with pytest.raises(asyncio.CancelledError):
            await one
        return nodes

    assert asyncio.run(work()).sent[-1].chains[1] == (1,)


def test_a_run_that_is_cancelled_leaves_no_map_on_its_way_behind_its_leases():
    """The next operator would not have seen it, and could give its revision to another map."""

    async def work():
        nodes = Nodes()
        publisher = Publisher(nodes, START)
        changes = [asyncio.create_task(publisher.change(0, (B, A)))]
        await turns()
        changes.append(asyncio.create_task(publisher.change(1, (C,))))
        await turns()
        for change in changes:
            change.cancel()
        await asyncio.wait(changes)
        finished = asyncio.create_task(publisher.finish())
        await turns()
        assert not finished.done(), "the first map is on its way"
        nodes.deliver()
        await finished
        await turns()
        return nodes

    assert [found.rev for found in asyncio.run(work()).sent] == [8], "the second change has not begun to be sent"


class Narrowing(Nodes):
    """Holds nothing; notes who is told something alone."""

    def __init__(self):
        super().__init__()
        self.told = []
        self.deliver()

    async def tell(self, address, wanted):
        self.told.append((address, wanted))


@pytest.mark.parametrize(("answer", "needed"), [(42, {0: 42, 1: 7}), (0, {1: 7})])
def test_a_question_is_asked_when_those_who_are_first_have_the_change_and_before_all_others_have_it(answer, needed):
    nodes = Narrowing()
    start = a_map("AB", "A", servers=(A, B, C)).with_needed({0: 5, 1: 7})
    publisher = Publisher(nodes, start)

    async def question():
        (told,) = nodes.told
        assert told[0] == A and told[1].copies(0) == (A, C) and told[1].unknown == [0] and nodes.sent == []
        return answer

    asyncio.run(publisher.change(0, (A, C), first=(A,), question=question))
    assert [(each.copies(0), each.needed) for each in nodes.sent] == [((A, C), needed)]
    assert nodes.sent[0].rev > nodes.told[0][1].rev


def test_a_change_whose_question_has_no_answer_is_taken_back_and_no_other_change_is():
    nodes = Narrowing()
    start = a_map("AB", "A", servers=(A, B, C)).with_needed({0: 5, 1: 7})
    publisher = Publisher(nodes, start)

    async def question():
        raise ConnectionLost("node-a:11210", "refused")

    async def work():
        narrow = publisher.change(0, (A, C), first=(A,), question=question)
        return await asyncio.gather(narrow, publisher.change(1, (B,)), return_exceptions=True)

    lost, other = asyncio.run(work())
    assert isinstance(lost, ConnectionLost) and other is None
    assert {(each.copies(0), each.owner(1), each.needed[0], each.needed[1]) for each in nodes.sent} == {
        ((A, B), B, 5, 7)
    }
    assert nodes.sent[-1].rev > nodes.told[0][1].rev and nodes.instead[-1] == {}


def test_no_map_names_a_new_copy_without_saying_how_far_it_must_be_whatever_is_asked_meanwhile():
    """The owner and the new copy were told of the copy and of the question first: how far it must be came later."""
    nodes = Narrowing()
    publisher = Publisher(nodes, a_map("AB", "A", servers=(A, B, C)))

    async def work():
        join = publisher.change(1, (A, B), first=(A, B), needed=1000)
        await asyncio.gather(join, publisher.change(0, (A, C), first=(A,), question=answer))

    async def answer():
        return 42

    asyncio.run(work())
    asked = [told for _, told in nodes.told]
    assert [node for node, _ in nodes.told] == [A]
    named = [each for each in (*asked, *nodes.sent) if each.copies(1) == (A, B)]
    assert named and {each.needed.get(1) for each in named} == {1000}
    assert nodes.sent[-1].copies(0) == (A, C) and nodes.sent[-1].needed == {0: 42, 1: 1000}


def test_other_changes_go_out_while_an_owner_is_asked_and_it_keeps_what_it_was_asked_about():
    """Were the owner given the wider chain again, its answer would tell too little of what it acknowledges by that."""
    nodes = Narrowing()
    publisher = Publisher(nodes, a_map("AB", "A", "AB", servers=(A, B, C)))
    answered = asyncio.Event()

    async def slow():
        await answered.wait()
        return 42

    async def lost():
        await answered.wait()
        raise ConnectionLost("node-a:11210", "refused")

    async def work():
        asking = [asyncio.create_task(publisher.change(0, (A, C), first=(A,), question=slow))]
        await turns()
        asking.append(asyncio.create_task(publisher.change(2, (A, C), first=(A,), question=lost)))
        await turns()
        await publisher.change(1, (C,), first=(C,))
        (own,), sent = nodes.instead[-1].values(), nodes.sent[-1]
        assert list(nodes.instead[-1]) == [A] and own.rev > sent.rev and publisher.current.rev == own.rev
        assert [own.copies(vb) for vb in range(3)] == [(A, C), (C,), (A, C)] and sorted(own.unknown) == [0, 2]
        assert [sent.copies(vb) for vb in range(3)] == [(A, B), (C,), (A, B)] and sent.needed == {}
        assert [told.unknown for _, told in nodes.told] == [[0], [0, 2]]
        answered.set()
        return await asyncio.gather(*asking, return_exceptions=True)

    done, failed = asyncio.run(work())
    assert done is None and isinstance(failed, ConnectionLost)
    final = nodes.sent[-1]
    assert [final.copies(vb) for vb in range(3)] == [(A, C), (C,), (A, B)] and final.needed == {0: 42}
    everything = [
        *(told for _, told in nodes.told),
        *nodes.sent,
        *(own for each in nodes.instead for own in each.values()),
    ]
    assert len({each.rev for each in everything}) == len(everything) and final.rev == max(
        each.rev for each in everything
    )


def test_an_owner_that_does_not_take_its_map_holds_up_no_other_change():
    nodes = Narrowing()
    publisher = Publisher(nodes, a_map("AB", "A", servers=(A, B, C)))

    async def hang(address, wanted):
        await asyncio.Event().wait()

    async def never():
        raise AssertionError("nobody has the change")

    async def work():
        nodes.tell = hang
        asking = asyncio.create_task(publisher.change(0, (A, C), first=(A,), question=never))
        await turns()
        await asyncio.wait_for(publisher.change(1, (C,)), 5.0)
        assert not asking.done()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await publisher.change(1, (B,))
        assert nodes.instead[-1] == {} and nodes.sent[-1].copies(0) == (A, B)

    asyncio.run(work())


def test_an_owner_that_is_asked_is_ahead_of_all_others_by_a_number_of_revisions_that_is_known():
    """Who takes it out goes by theirs, and must be newer than its own map."""
    nodes = Narrowing()
    start = a_map("AB", "AB", "BC", servers=(A, B, C))
    publisher = Publisher(nodes, start)

    async def hang():
        await asyncio.Event().wait()

    async def work():
        asking = []
        for vb, chain in enumerate([(A, C), (A, C), (B, A)]):
            asking.append(asyncio.create_task(publisher.change(vb, chain, question=hang)))
            await turns()
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    asyncio.run(work())
    ahead = max(told.rev for _, told in nodes.told) - start.rev
    assert nodes.sent == [] and 0 < ahead <= OWN_MAPS_MAX


def test_how_far_copies_must_be_leaves_with_the_next_map():
    async def work():
        nodes = Nodes()
        nodes.deliver()
        publisher = Publisher(nodes, START)
        await publisher.need({1: 42})
        assert [each.needed for each in nodes.sent] == [{1: 42}] and publisher.current.needed == {1: 42}

    asyncio.run(work())


class Asking(Narrowing):
    """One member asks the owner A for its map before it is sent its own; `theirs` is what it has taken then."""

    def __init__(self, takes):
        super().__init__()
        self.takes, self.theirs = takes, None

    async def send(self, wanted, *, first=(), also=(), instead=NO_OTHERS):
        await super().send(wanted, first=first, also=also, instead=instead)
        if self.takes:
            self.takes -= 1
            self.theirs = instead.get(A, a_map("AB", "A", servers=(A, B, C)).after(wanted.rev + 5))
            raise NewerMap(C, wanted)

    async def map_of(self, address):
        return self.theirs


def change_while_an_owner_is_asked(nodes):
    publisher = Publisher(nodes, a_map("AB", "A", servers=(A, B, C)))

    async def hang():
        await asyncio.Event().wait()

    async def work():
        asking = asyncio.create_task(publisher.change(0, (A, C), question=hang))
        await turns()
        try:
            await publisher.change(1, (B,), first=(B,))
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(work())


def test_a_member_that_took_an_asked_owners_map_from_it_gets_a_newer_one():
    nodes = Asking(takes=2)
    change_while_an_owner_is_asked(nodes)
    versions = [(wanted.rev, own[A].rev) for wanted, own in zip(nodes.sent, nodes.instead, strict=True)]
    assert versions == [(9, 10), (11, 12), (13, 14)] and {wanted.chains for wanted in nodes.sent} == {((0, 1), (1,))}
    assert all(first == {A, B} for first in nodes.first), "before anybody has a map that it could take"


def test_a_map_of_somebody_else_is_none_that_an_asked_owner_was_given():
    with pytest.raises(NewerMap, match="somebody else changes this cluster"):
        change_while_an_owner_is_asked(Foreign(takes=1))


class Foreign(Asking):
    """The map that is there is another operator's."""

    async def map_of(self, address):
        return a_map("AB", "B", servers=(A, B, C)).after(100)
