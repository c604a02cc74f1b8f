"""The nodes, asked and told, over real connections."""

import asyncio

import pytest

from headwater import client, testing
from headwater.accounts.roles import read_grants
from headwater.accounts.users import Account
from headwater.client.routing import Address, parse
from headwater.cluster.members import Members
from headwater.errors import ClusterError, StatusError, TransportError
from headwater.node.users.file import UsersFile
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.vbucket import State

from .nodes import VBUCKETS, at, documents, empty_nodes, fill, init

NOBODY = Address("127.0.0.1", 1)


@pytest.fixture(scope="module")
def nodes():
    with empty_nodes(2) as running:
        yield running


def ask(work):
    async def asked():
        async with Members(timeout_seconds=5.0) as members:
            return await work(members)

    return asyncio.run(asked())


def test_nodes_that_were_never_in_a_cluster_have_no_survey(nodes):
    with pytest.raises(ClusterError, match="in no cluster; start with: headwater cluster init"):
        ask(lambda members: members.survey(at(nodes[0])))


def test_a_node_that_is_down_is_to_be_started_and_no_cluster_is_to_be_founded():
    with pytest.raises(ClusterError, match="start it, or name a member that runs") as caught:
        ask(lambda members: members.survey([Address("127.0.0.1", 1)]))
    assert "init" not in str(caught.value)


def test_one_node_leads_to_the_others(nodes):
    init(*nodes)
    fill(nodes[0], documents(100))
    found = ask(lambda members: members.survey(at(nodes[0])))
    assert list(found.nodes) == at(*nodes) and found.silent == []
    for address, node in found.nodes.items():
        assert node.this == address and node.map == found.map and node.fenced == ""
        assert node.count(State.ACTIVE) == len(node.states) == VBUCKETS // 2 and node.has_data
    assert sum(sum(node.items.values()) for node in found.nodes.values()) == 100


def test_a_node_that_does_not_answer_is_a_fact_of_the_survey(nodes):
    found = ask(lambda members: members.survey([*at(nodes[0]), NOBODY]))
    assert not found.nodes[NOBODY].answers and "refused" in found.nodes[NOBODY].error
    dead = ask(lambda members: members.survey(at(nodes[0]), without=at(nodes[1])))
    assert [node.error for node in dead.silent] == ["taken for dead"]


def test_a_node_that_can_not_be_asked_lives_if_it_refuses_or_hangs_up_at_tls_but_not_without_the_bucket(
    nodes, tmp_path
):
    async def look(members, address):
        async with members:
            return await members.view(address)

    (here,) = at(nodes[0])
    assert not asyncio.run(look(Members("other"), here)).lives
    assert not asyncio.run(look(Members(), NOBODY)).lives
    tls = parse("couchbases://127.0.0.1?tls_verify=none").tls
    assert asyncio.run(look(Members(tls=tls), here)).lives
    (tmp_path / "password").touch(0o600)
    (tmp_path / "password").write_text("right")
    with testing.node(vbuckets=1, user="ann", password_file=tmp_path / "password") as node:
        view = asyncio.run(look(Members(user="ann", password="wrong"), at(node)[0]))
    assert view.is_refusal and view.lives and not view.answers


def test_if_nobody_answers_each_reason_is_told():
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1:1: connection refused"):
        ask(lambda members: members.survey([NOBODY]))


def test_an_older_map_is_refused_in_words(nodes):
    async def work(members):
        survey = await members.survey(at(nodes[0]))
        await members.send(survey.map.after(survey.latest_rev()))
        await members.send(survey.map)

    with pytest.raises(ClusterError, match=r"has a map that is newer.*somebody else changes this cluster"):
        ask(work)


def test_the_others_get_a_map_that_one_node_can_not_get(nodes):
    async def work(members):
        survey = await members.survey(at(nodes[0]))
        wider = survey.map.with_servers((NOBODY, *survey.map.servers))
        with pytest.raises(TransportError):
            await members.send(wider, first=[NOBODY])
        views = [await members.view(node) for node in at(*nodes)]
        await members.send(survey.map.after(wider.rev))
        return wider, views

    wider, views = ask(work)
    assert [view.version for view in views] == [wider.version] * 2
    assert isinstance(views[0].map, ClusterMap) and views[0].map.servers[0] == NOBODY


def test_an_error_of_many_state_changes_leaves_when_none_is_on_its_way_any_more():
    with testing.node(vbuckets=256) as node:
        [address] = at(node)

        async def work(members):
            await members.admin(address).states()
            before = asyncio.all_tasks()
            with pytest.raises(StatusError):
                await members.set_states(address, {256: State.DEAD, **dict.fromkeys(range(256), State.REPLICA)})
            assert asyncio.all_tasks() == before
            return [await members.admin(address).states(), await members.admin(address).states()]

        earlier, later = ask(work)
        assert earlier == later


def test_who_may_only_monitor_sees_the_same_as_an_administrator_but_for_map_and_rights():
    with testing.node(vbuckets=4) as node:
        node.stop()
        grants = {"ann": "administer", "watch": "monitor"}
        UsersFile(node.data).save({name: Account.create("pass", read_grants(role)) for name, role in grants.items()})
        node.start()
        with client.connect(node.url, "ann", "pass") as bucket:
            bucket.set("a", "b")
            bucket.set_vbucket_state(3, "dead")
        [address] = at(node)

        async def look(user):
            async with Members("default", user, "pass", timeout_seconds=30.0) as members:
                return [await members.view(address) for _ in range(3)]

        seen = asyncio.run(look("watch"))
        assert seen == asyncio.run(look("ann"))
        assert seen[0].answers and sum(seen[0].seqnos.values()) == 1 and seen[0].states[3] is State.DEAD
        refused = [line for line in node.log.splitlines() if "GET_ALL_VB_SEQNOS" in line]
        assert 1 <= len(refused) <= 2, "what was refused is not asked for again"
