"""`headwater move` and `headwater replicate` against real nodes: what they leave, say and refuse."""

import signal
import subprocess
import sys

import pytest

from headwater import testing

DOCUMENTS = 500
SECONDS = 120


@pytest.fixture(scope="module")
def nodes():
    with testing.node(vbuckets=8) as one, testing.node(vbuckets=8, vbucket_state="none") as other:
        with one.client() as bucket:
            bucket.set_many((f"k{number}", "v" * 100) for number in range(DOCUMENTS))
        yield one, other


def headwater(*arguments):
    command = [sys.executable, "-m", "headwater", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    return done.returncode, done.stdout, done.stderr


def states(node):
    with node.client() as bucket:
        return {int(name[3:]): value for name, value in bucket.stats("vbucket").items()}


def test_copies_are_replicas_that_hold_everything(nodes):
    one, other = nodes
    status, said, _ = headwater("move", "--from", one.address, "--to", other.address, "--vbuckets", "0-3")
    assert (status, said.startswith("4 vbuckets copied, ")) == (0, True)
    assert states(other) == dict.fromkeys(range(4), "replica")
    assert states(one) == dict.fromkeys(range(8), "active")


def test_following_goes_on_until_it_is_stopped_and_that_is_no_failure(nodes):
    one, other = nodes
    command = [sys.executable, "-m", "headwater", "move", "--from", one.address, "--to", other.address, "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        line = running.stdout.readline()
        second = headwater("move", "--from", one.address, "--to", other.address, "--once")
        running.send_signal(signal.SIGINT)
        _, problems = running.communicate(timeout=SECONDS)
    assert line.startswith("8 vbuckets copied")
    told = f"copies vbuckets from {one.address} to {other.address} already"
    assert told in " ".join(second[2].split()) and second[2].count("already") == 1
    assert running.returncode == 0 and "headwater:" not in problems  # how far it is, every ten seconds


def test_replicate_leaves_the_node_following_until_it_is_told_to_stop(nodes):
    one, other = nodes
    status, said, _ = headwater("replicate", one.address, other.address, "--once")
    assert (status, said.startswith("8 vbuckets level")) == (0, True)
    assert headwater("replicate", one.address, other.address, "--stop")[0] == 0
    status, _, problem = headwater("replicate", other.address, one.address, "--vbuckets", "0", "--once")
    assert (status, "does not own vbucket 0" in problem) == (1, True)


def test_a_takeover_moves_ownership_and_typing_it_again_finds_it_done(nodes):
    one, other = nodes
    again = ("move", "--from", one.address, "--to", other.address, "--takeover", "--vbuckets", "0-7", "--delete")
    for _ in range(2):
        status, said, problem = headwater(*again)
        assert (status, said.startswith("8 vbuckets moved"), problem) == (0, True, "")
    assert states(other) == dict.fromkeys(range(8), "active")
    assert states(one) == {}
    with other.client() as bucket:
        assert sum(1 for number in range(DOCUMENTS) if bucket.get(f"k{number}").value) == DOCUMENTS


def test_what_the_first_node_does_not_own_is_refused_in_one_line(nodes):
    one, other = nodes
    with one.client() as bucket:
        bucket.set_vbucket_state(0, "replica")
    with other.client() as bucket:
        bucket.set_vbucket_state(0, "replica")
    status, _, problem = headwater("move", "--from", one.address, "--to", other.address, "--takeover", "--vbuckets=0")
    assert status == 1
    assert problem.count("\n") == 1 and "the source does not own it" in problem


def test_a_node_that_is_not_there_is_told_in_one_line(nodes):
    status, _, problem = headwater("move", "--from", "127.0.0.1:1", "--to", nodes[1].address)
    assert status == 1 and problem.startswith("headwater: 127.0.0.1:1: connection refused; no node listens there")
    assert problem.count("\n") == 1


def test_vbuckets_that_the_bucket_has_not_are_refused_before_anything_is_copied():
    with testing.node(vbuckets=4) as one, testing.node(vbuckets=4, vbucket_state="none") as other:
        status, said, problem = headwater("move", "--from", one.address, "--to", other.address, "--vbuckets", "0-511")
        assert (status, said) == (2, "") and "of this bucket, which has 0 to 3" in problem
        assert states(other) == {}


def test_a_takeover_of_a_part_says_that_no_map_leads_clients_to_both_nodes():
    with testing.node(vbuckets=4) as one, testing.node(vbuckets=4, vbucket_state="none") as other:
        line = ("move", "--from", one.address, "--to", other.address, "--takeover", "--vbuckets")
        status, _, problem = headwater(*line, "0-1")
        assert status == 0 and f"{one.address} keeps 2 vbuckets, and no cluster map" in problem
        assert "headwater cluster" in problem
        assert headwater(*line, "0-3")[::2] == (0, "")
