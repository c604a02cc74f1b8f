"""Failover, founding and promotion on real nodes, and how the commands tell of it."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from harness.nodes import until
from headwater import client
from headwater.cluster import founding
from headwater.cluster.failover import Failover
from headwater.cluster.members import Members
from headwater.errors import ClusterError
from headwater.testing.node import node
from headwater.wire.vbucket import State, vbucket_of
from tests.node.membership.support import stats

from .contents import check_cluster, vbuckets
from .nodes import VBUCKETS, Writer, at, check, command, documents, empty_nodes, fill, init, rebalance, until_level

DOCUMENTS = documents()
MORE = {f"later-{number}".encode(): b"later" for number in range(300)}
KILLED = -9


def fail_over(seed, dead, **options):
    async def work():
        async with Members() as members:
            return await Failover(members, at(seed), at(dead), **options).run()

    return asyncio.run(work())


def status(seed):
    """Return the output of `headwater cluster status --json`, and its exit status."""
    code, shown, _ = command("cluster", "status", seed.address, "--json")
    return code, json.loads(shown)


def test_the_replicas_of_a_dead_node_take_over_and_it_comes_back_as_a_replica():
    with empty_nodes(3) as nodes:
        one, two, three = nodes
        init(*nodes, replicas=1)
        fill(one, DOCUMENTS)
        until_level(*nodes)
        three.kill()
        done = fail_over(one, three)
        assert len(done.promotions) in (5, 6) and {promotion.lost for promotion in done.promotions} == set(at(three))
        check([one, two], DOCUMENTS)
        fill(one, MORE)
        three.restart()
        rebalance(one, add=at(three))
        check(nodes, DOCUMENTS | MORE)
        assert min(len(vbuckets(node.port)) for node in nodes) >= 10  # 5 owned and 5 followed at least


def test_what_a_node_had_just_handed_over_when_it_died_is_served_by_its_new_owner():
    """The operator was killed before a map said who that is."""
    with empty_nodes(3) as nodes:
        init(*nodes[:2], replicas=1)
        fill(nodes[0], DOCUMENTS)
        line = ("cluster", "rebalance", nodes[0].address, "--add", nodes[2].address, "--yes")
        assert command(*line, failpoints="move.owned=kill")[0] == KILLED
        dead = next(node for node in nodes[:2] if State.DEAD in vbuckets(node.port).values())
        left = [node for node in nodes if node is not dead]
        dead.kill()
        fail_over(left[0], dead)
        until_level(*left)  # with whom the map names
        rebalance(left[0])
        check(left, DOCUMENTS)


def test_a_dead_node_that_comes_back_by_itself_serves_nothing_it_lost():
    with empty_nodes(3) as nodes:
        one, two, three = nodes
        init(*nodes, replicas=1)
        fill(one, DOCUMENTS)
        until_level(*nodes)
        three.kill()
        fail_over(one, three)
        three.restart()
        code, told = status(three)
        assert code == 1 and f"{three.address} is no member any more" in " ".join(told["problems"])
        with Writer(three) as writer:  # an application that only knows the node that was dead
            writer.until_acknowledged(100)
        check([one, two], DOCUMENTS | writer.acknowledged)


@pytest.mark.parametrize("place", ["failover.ownerless", "failover.map_sent"])
def test_a_failover_that_was_killed_goes_on_when_it_is_typed_again(place):
    with empty_nodes(3) as nodes:
        init(*nodes, replicas=1)
        fill(nodes[0], DOCUMENTS)
        until_level(*nodes)
        nodes[0].kill()
        line = ("cluster", "failover", nodes[1].address, "--dead", nodes[0].address, "--yes")
        assert command(*line, failpoints=f"{place}=kill")[0] == KILLED
        code, told = status(nodes[1])
        assert code == 1 and "nobody owns" in told["problems"][0]
        assert command(*line)[0] == 0
        check(nodes[1:], DOCUMENTS)
        assert command(*line)[1] == "there is nothing to do\n"


def test_a_node_that_lives_is_not_failed_over_unless_it_is_forced():
    with empty_nodes(2) as nodes:
        init(*nodes, replicas=1)
        fill(nodes[0], DOCUMENTS)
        until_level(*nodes)
        with pytest.raises(ClusterError, match="answers: it is not dead"):
            fail_over(nodes[0], nodes[1])
        fail_over(nodes[0], nodes[1], force=True)
        check([nodes[0]], DOCUMENTS)
        assert "ACTIVE" not in {state.name for state in vbuckets(nodes[1].port).values()}


def test_vbuckets_without_a_replica_are_begun_anew_only_when_that_is_asked_for():
    with empty_nodes(2) as nodes:
        init(*nodes)
        fill(nodes[0], DOCUMENTS)
        nodes[1].kill()
        with pytest.raises(ClusterError, match="no copy is left of 8 vbuckets"):
            fail_over(nodes[0], nodes[1])
        fail_over(nodes[0], nodes[1], lose_data=True)
        fill(nodes[0], MORE)
        assert status(nodes[0])[0] == 0


def test_survivors_log_who_is_gone_and_how_many_vbuckets_they_own_instead():
    with empty_nodes(3) as nodes:
        init(*nodes, replicas=1)
        nodes[2].kill()
        fail_over(nodes[0], nodes[2])
        lines = [line for node in nodes[:2] for line in node.log.splitlines()]
        gone = [line for line in lines if "is no member any more" in line]
        here = [int(found[1]) for line in lines if (found := re.search(r"(\d+) vbuckets .* become active here", line))]
        assert len(gone) == 2 and all(nodes[2].address in line for line in gone)
        assert sum(here) in (5, 6) and all(f"{sum(here)} vbuckets have no owner" in line for line in gone)


def test_a_typo_in_remove_is_told_and_nothing_is_done():
    with empty_nodes(2) as nodes:
        init(*nodes)
        line = ("cluster", "rebalance", nodes[0].address, "--yes", "--remove")
        code, _, told = command(*line, "127.0.0.1:1")
        assert code == 1 and "127.0.0.1:1 is no member" in told and nodes[1].address in told
        code, _, told = command(*line, f"localhost:{nodes[1].port}")
        assert code == 1 and f"is the member {nodes[1].address}; use that address" in told


def test_a_member_that_is_named_as_the_map_does_not_is_the_member():
    with empty_nodes(2) as nodes:
        init(*nodes)
        fill(nodes[0], DOCUMENTS)
        alias = f"localhost:{nodes[0].port}"
        assert command("cluster", "status", alias)[0] == 0
        code, shown, told = command("cluster", "rebalance", alias, "--yes")
        assert code == 0 and "deletes" not in shown, told
        check(nodes, DOCUMENTS)
        code, _, told = command("cluster", "rebalance", nodes[1].address, "--yes", "--add", alias)
        assert code == 1 and f"is the member {nodes[0].address}; use that address" in told


def test_founding_that_was_killed_goes_on_when_it_is_typed_again():
    with empty_nodes(3) as nodes:
        line = ("cluster", "init", *(node.address for node in nodes), "--replicas", "2")
        assert command(*line, failpoints="init.map_sent=kill")[0] == KILLED
        code, shown, _ = command(*line)
        assert code == 0 and shown.startswith(f"{VBUCKETS} vbuckets of default on 3 nodes, 2 replicas of each")
        fill(nodes[0], DOCUMENTS)
        check(nodes, DOCUMENTS)
        code, told = status(nodes[2])
        assert (code, told["healthy"], told["remarks"]) == (0, True, [])


def test_status_names_what_is_wrong_in_one_line_and_ends_with_1():
    with empty_nodes(2) as nodes:
        init(*nodes)
        nodes[1].kill()
        code, shown, told = command("cluster", "status", nodes[0].address)
        assert code == 1 and "no answer" in shown
        assert told.startswith("headwater: ") and nodes[1].address in told and told.count("\n") == 1


def test_a_plan_is_shown_and_not_begun_without_a_yes():
    with empty_nodes(2) as nodes:
        init(nodes[0])
        line = ("cluster", "rebalance", nodes[0].address, "--add", nodes[1].address)
        assert command(*line, "--dry-run")[0] == 0
        code, shown, told = command(*line)  # nobody is there to be asked
        assert code == 130 and "hands 8 vbuckets over" in shown and "stopped" in told
        assert vbuckets(nodes[1].port) == {}
        assert command(*line, "--yes")[0] == 0
        assert len(vbuckets(nodes[1].port)) == VBUCKETS // 2


def test_the_replicas_of_a_pair_without_a_map_are_promoted():
    async def follow(follower, source):
        async with Members() as members:
            await members.admin(at(follower)[0]).replicate(members.endpoint(at(source)[0]), range(VBUCKETS))

    with empty_nodes(2) as (one, two):
        init(one)
        fill(one, DOCUMENTS)
        asyncio.run(follow(two, one))
        code, _, told = command("failover", two.address, "--yes")
        assert code == 1 and "headwater move" in told
        wait_for_items(two, one)
        one.kill()
        code, shown, _ = command("failover", two.address, "--yes")
        assert code == 0 and f"to become active: {VBUCKETS} vbuckets of {two.address}" in shown
        assert check_cluster([two.port]) == DOCUMENTS


def wait_for_items(follower, source):
    async def work():
        async with Members() as members:
            wanted = await members.admin(at(source)[0]).seqnos()
            for vb, seqno in wanted.items():
                await members.admin(at(follower)[0]).wait_persisted(vb, seqno)

    asyncio.run(work())


def left_by_the_disk_of(node):
    """The keys that others own, after a node came back without its disk."""
    owned = vbuckets(node.port)
    node.kill()
    shutil.rmtree(node.data)
    node.restart()
    return [key for key in DOCUMENTS if owned.get(vbucket_of(key, VBUCKETS)) is not State.ACTIVE]


def test_a_member_that_comes_back_empty_takes_no_client_away_from_the_others():
    """A pod whose volume was lost: its own map is made later than the cluster's, and says that nobody owns anything."""
    with empty_nodes(3) as nodes:
        one, two, three = nodes
        init(*nodes, replicas=1)
        fill(one, DOCUMENTS)
        until_level(*nodes)
        there = left_by_the_disk_of(three)
        seeds = ",".join(node.address for node in (three, two))
        with client.connect(f"couchbase://{seeds}/default", timeout_seconds=60) as bucket:
            assert bucket.get(there[0]).value == DOCUMENTS[there[0]]
            assert bucket.get_many(there).keys() == set(there)
        code, _, said = command("cluster", "init", *(node.address for node in nodes), "--replicas", "1")
        assert code == 1 and f"{three.address} has vbuckets" in said and "rebalance or failover mend it" in said
        rebalance(one)
        check(nodes, DOCUMENTS)


def test_a_cluster_of_the_epoch_of_nodes_own_maps_leaves_it_with_its_next_map(monkeypatch):
    """As clusters were founded before: until then a member that comes back empty has the newest map."""

    def first_map(*told, **how):
        made, owner = found_now(*told, **how)
        return replace(made, epoch=1), owner

    found_now = founding.first_map
    monkeypatch.setattr(founding, "first_map", first_map)
    with empty_nodes(3) as nodes:
        one, two, three = nodes
        init(*nodes, replicas=1)
        assert status(one)[1]["revision"]["epoch"] == 1
        fill(one, DOCUMENTS)
        until_level(*nodes)
        assert command("cluster", "tls", one.address, "--off")[0] == 0
        assert status(three)[1]["revision"]["epoch"] == 2
        there = left_by_the_disk_of(three)
        seeds = ",".join(node.address for node in (three, two))
        with client.connect(f"couchbase://{seeds}/default", timeout_seconds=60) as bucket:
            assert bucket.get_many(there).keys() == set(there)
        rebalance(one)
        check(nodes, DOCUMENTS)


def test_replicas_do_not_follow_a_member_that_comes_back_without_its_disk_and_owns_everything():
    """A service with the default `--vbucket-state active` does so: what it says it owns is empty."""
    with node(vbuckets=VBUCKETS) as one, empty_nodes(2) as others:
        nodes = [one, *others]
        init(*nodes, replicas=1)
        fill(one, DOCUMENTS)
        until_level(*nodes)
        one.kill()
        shutil.rmtree(one.data)
        one.restart()
        other = others[0]
        problem = f"{one.address}/default:problem"
        until(lambda: "a map of another cluster" in stats(other, "replication").get(problem, ""), "it was looked at")
        code, told = status(other)
        assert code == 1 and any("is not the member that the map means" in each for each in told["problems"])
        with pytest.raises(ClusterError, match="is not the member that the map means"):
            rebalance(other)
        fail_over(other, one, force=True)
        check(others, DOCUMENTS)
        rebalance(other, add=at(one))
        check(nodes, DOCUMENTS)


def test_a_member_that_is_slow_to_start_is_waited_for_and_named():
    with empty_nodes(2) as nodes:
        os.kill(nodes[1].pid, signal.SIGSTOP)  # as one that compiles, on a machine that others use as well
        line = [sys.executable, "-m", "headwater", "cluster", "init", *(node.address for node in nodes)]
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as founding:
            said = founding.stderr.readline()
            os.kill(nodes[1].pid, signal.SIGCONT)
            shown, _ = founding.communicate(timeout=240)
        assert said.startswith(f"headwater: waiting for {nodes[1].address}, ") and "of 60 s" in said
        assert founding.returncode == 0 and "on 2 nodes" in shown


def test_a_run_that_waits_for_a_dead_member_says_so_at_once():
    """A minute without a word looks like a command that hangs."""
    with empty_nodes(2) as (one, two):
        init(one, two)
        two.kill()
        line = [sys.executable, "-m", "headwater", "tail", "--once", "--node", one.url]
        with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as waiting:
            said = waiting.stderr.readline()
            waiting.terminate()
            assert waiting.wait(240) == 143
    assert said == f"headwater: {two.address}: connection refused; trying again, for up to 60 s\n"


def test_a_cluster_is_not_made_while_a_node_is_silent_and_one_line_says_which():
    with empty_nodes(2) as nodes:
        nodes[1].kill()
        status, shown, said = command("cluster", "init", *(node.address for node in nodes))
        assert (status, shown) == (1, "")
        assert said.splitlines() == [
            f"headwater: {nodes[1].address} does not answer (connection refused); start it, then type this again"
        ]
