"""Questions about copies go to a node together, and each answer is of after its question."""

import asyncio

import pytest

from headwater.cluster.inquiry import Inquiry
from headwater.errors import ClusterError, ConnectionLost

from .fakes import FakeNode, turns
from .views import A, B


class Slow(FakeNode):
    """A node that answers when it is let."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.gates = []

    async def copies(self, vbuckets):
        wanted, gate = set(vbuckets), asyncio.Event()
        self.gates.append(gate)
        await gate.wait()
        return await super().copies(wanted)

    @property
    def questions(self):
        return [each[1] for each in self.asked if each[0] == "copies"]


def test_vbuckets_that_are_asked_about_at_once_are_one_question():
    async def work():
        node = FakeNode(A, "A A A", seqnos=[3, 4, 5])
        inquiry = Inquiry({A: node}.__getitem__)
        found = await asyncio.gather(*(inquiry.copy(A, vb) for vb in (0, 1, 2, 7)))
        assert [each and each.seqno for each in found] == [3, 4, 5, None]
        assert node.asked == [("copies", [0, 1, 2, 7])]

    asyncio.run(work())


def test_what_is_asked_while_a_question_is_on_its_way_goes_with_the_next():
    async def work():
        node = Slow(A, "A A")
        inquiry = Inquiry({A: node}.__getitem__)
        first = asyncio.create_task(inquiry.copy(A, 0))
        await turns()
        later = [asyncio.create_task(inquiry.copy(A, vb)) for vb in (0, 1)]
        await turns()
        assert len(node.gates) == 1
        node.gates[0].set()
        await first
        await turns()
        node.high[0] = 99
        node.gates[1].set()
        assert [(await each).seqno for each in later] == [99, 10] and node.questions == [[0], [0, 1]]

    asyncio.run(work())


def test_nodes_are_asked_at_the_same_time():
    async def work():
        nodes = {each: Slow(each, "A") for each in (A, B)}
        inquiry = Inquiry(nodes.__getitem__)
        asking = [asyncio.create_task(inquiry.copy(each, 0)) for each in (A, B)]
        await turns()
        assert [len(node.gates) for node in nodes.values()] == [1, 1]
        for node in nodes.values():
            node.gates[0].set()
        await asyncio.gather(*asking)

    asyncio.run(work())


def test_a_node_that_does_not_answer_is_told_to_all_who_asked_and_asked_again_by_the_next():
    async def work():
        node = FakeNode(A, "A A", is_gone=True)
        inquiry = Inquiry({A: node}.__getitem__)
        results = await asyncio.gather(*(inquiry.copy(A, vb) for vb in (0, 1)), return_exceptions=True)
        assert all(isinstance(result, ConnectionLost) for result in results)
        node.is_gone = False
        assert (await inquiry.copy(A, 0)).is_active

    asyncio.run(work())


def test_one_who_gives_up_takes_nobody_elses_answer_with_him():
    async def work():
        node = Slow(A, "A A")
        inquiry = Inquiry({A: node}.__getitem__)
        gone, other = (asyncio.create_task(inquiry.copy(A, vb)) for vb in (0, 1))
        await turns()
        gone.cancel()
        node.gates[0].set()
        assert (await other).seqno == 10

    asyncio.run(work())


@pytest.mark.parametrize("states", ["r", "."])
def test_who_does_not_own_a_vbucket_is_told_with_the_next_step(states):
    inquiry = Inquiry({A: FakeNode(A, states)}.__getitem__)
    with pytest.raises(ClusterError, match="does not own vbucket 0 any more"):
        asyncio.run(inquiry.owned_seqno(A, 0))
