"""The publisher: every change goes out once, together with those that waited, and never before an earlier one."""

import asyncio

import pytest

from headwater.cluster.publisher import Publisher
from headwater.errors import ConnectionLost

from .views import A, B, C, a_map

START = a_map("A", "A", "A", "A", replicas=0)


class Nodes:
    """Stands for the members; notes what is sent, and holds it until `deliver`."""

    def __init__(self, refusal=None):
        self.sent, self.first, self.refusal = [], [], refusal
        self._gate = asyncio.Event()

    def deliver(self):
        self._gate.set()

    async def send(self, wanted, *, first=(), also=()):
        self.sent.append(wanted)
        self.first.append(set(first))
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
        assert all(isinstance(each, ConnectionLost) for each in results)
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


def test_a_change_whose_question_has_no_answer_is_taken_back():
    nodes = Narrowing()
    start = a_map("AB", "A", servers=(A, B, C)).with_needed({0: 5, 1: 7})
    publisher = Publisher(nodes, start)

    async def question():
        raise ConnectionLost("node-a:11210", "refused")

    async def work():
        narrow = publisher.change(0, (A, C), first=(A,), question=question)
        return await asyncio.gather(narrow, publisher.change(1, (B,)), return_exceptions=True)

    assert all(isinstance(each, ConnectionLost) for each in asyncio.run(work()))
    assert [(each.copies(0), each.owner(1), each.needed) for each in nodes.sent] == [((A, B), B, start.needed)]


def test_how_far_copies_must_be_leaves_with_the_next_map():
    async def work():
        nodes = Nodes()
        nodes.deliver()
        publisher = Publisher(nodes, START)
        await publisher.need({1: 42})
        assert [each.needed for each in nodes.sent] == [{1: 42}] and publisher.current.needed == {1: 42}

    asyncio.run(work())
