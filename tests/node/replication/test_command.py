"""IOCTL_SET replicate: what is understood, what is refused before anything happens, and who follows whom then."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from headwater.node.calling import ProducerAddress
from headwater.node.replication import command
from headwater.wire.dcp import StreamFlag
from headwater.wire.features import Feature
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.support import Desk, desk

FROM = "10.0.0.2:11210/beer"
ORIGIN = ProducerAddress("10.0.0.2", 11210, "beer")


class Dialer:
    """Keeps what it is told, and calls nobody."""

    def __init__(self, server: object, source: ProducerAddress) -> None:
        self.source, self.wanted = source, dict[int, StreamFlag]()

    def follow(self, vbuckets: Iterable[int], flags: StreamFlag) -> None:
        self.wanted |= dict.fromkeys(vbuckets, flags)

    def leave(self, vbuckets: Iterable[int]) -> None:
        for vb in tuple(vbuckets):
            self.wanted.pop(vb, None)

    def forget(self, vb: int) -> None:
        self.wanted.pop(vb, None)

    def stop(self) -> None:
        self.wanted.clear()

    def stats(self, vbucket: int | None = None) -> Iterable[tuple[str, str]]:
        yield "connects", "0"
        if vbucket is not None:
            yield f"vb_{vbucket}", "open"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A node of four vbuckets: 0 active, 1 a replica, 2 dead, 3 not there."""
    monkeypatch.setattr(command, "Dialer", Dialer)
    with desk(tmp_path / "store") as made:
        made.bucket.vbuckets[1].set_state(State.REPLICA)
        made.bucket.vbuckets[2].set_state(State.DEAD)
        made.bucket.drop_vbucket(3)
        made.committer.commit()
        yield made


def told(here: Desk, key: str = "replicate", **asked: object) -> tuple[int, str]:
    """Status and text of the answer to such a request."""
    talk = here.session()
    talk.hello(Feature.XERROR)
    answer = talk.one(Opcode.IOCTL_SET, key=key.encode(), value=json.dumps(asked).encode())
    return answer.status, answer.value.decode()


def following(here: Desk) -> dict[str, dict[int, StreamFlag]]:
    return {str(dialer.source): dict(dialer.wanted) for dialer in here.replication.dialers.values()}


# --------------------------------------------------------------------------- starting


def test_a_vbucket_follows_and_one_that_is_not_here_is_made_as_a_replica(here: Desk) -> None:
    assert told(here, **{"from": FROM, "vbuckets": "1,3"}) == (Status.SUCCESS, "")
    assert following(here) == {FROM: {1: StreamFlag(0), 3: StreamFlag(0)}}
    assert here.bucket.state(3) is State.REPLICA and here.replication.wants(3) and not here.replication.wants(2)


def test_a_takeover_is_asked_for_with_its_flag(here: Desk) -> None:
    told(here, **{"from": FROM, "vbuckets": "1", "takeover": True})
    assert following(here) == {FROM: {1: StreamFlag.TAKEOVER}}


def test_without_a_list_all_that_is_here_follows(here: Desk) -> None:
    here.bucket.vbuckets[0].set_state(State.REPLICA)
    told(here, **{"from": FROM})
    assert set(following(here)[FROM]) == {0, 1, 2}


def test_without_a_bucket_it_is_the_one_of_the_same_name(here: Desk) -> None:
    told(here, **{"from": "[::1]:11210", "vbuckets": "1"})
    assert [dialer.source for dialer in here.replication.dialers.values()] == [ProducerAddress("::1", 11210, "default")]


def test_the_login_is_kept_and_a_new_one_begins_a_new_connection_with_all_that_followed(here: Desk) -> None:
    told(here, **{"from": FROM, "vbuckets": "1"})
    (first,) = here.replication.dialers.values()
    told(here, **{"from": FROM, "vbuckets": "2", "user": "u", "password": "p"})
    (second,) = here.replication.dialers.values()
    assert first is not second and set(first.wanted) == set()
    assert second.source == ProducerAddress("10.0.0.2", 11210, "beer", "u", "p") and set(second.wanted) == {1, 2}


def test_who_follows_another_leaves_the_one_before(here: Desk) -> None:
    told(here, **{"from": FROM, "vbuckets": "1-2"})
    told(here, **{"from": "c:1", "vbuckets": "2"})
    assert {name: set(found) for name, found in following(here).items()} == {FROM: {1}, "c:1/default": {2}}


def test_one_active_vbucket_refuses_them_all_and_nothing_happens(here: Desk) -> None:
    status, why = told(here, **{"from": FROM, "vbuckets": "0-3"})
    assert (status, "vbucket 0 is active here" in why) == (Status.EINVAL, True)
    assert following(here) == {} and 3 not in here.bucket.vbuckets


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({}, "from is host:port/bucket"),
        ({"from": "10.0.0.2"}, "from is host:port/bucket"),
        ({"from": "a:0"}, "from is host:port/bucket"),
        ({"from": "a:65536"}, "from is host:port/bucket"),
        ({"from": "a:1/b/c"}, "from is host:port/bucket"),
        ({"from": 5}, "from is host:port/bucket"),
        ({"from": FROM, "vbuckets": ""}, "0 to 3"),
        ({"from": FROM, "vbuckets": "1-4"}, "0 to 3"),
        ({"from": FROM, "vbuckets": "3-1"}, "0 to 3"),
        ({"from": FROM, "vbuckets": "1,,2"}, "0 to 3"),
        ({"from": FROM, "vbuckets": [1]}, "0 to 3"),
        ({"from": FROM, "takeover": 1}, "takeover is true or false"),
        ({"from": FROM, "user": 1}, "user and password are texts"),
        ({"from": FROM, "tls": 0}, "tls is the port"),
        ({"from": FROM, "tls": "yes"}, "tls is the port"),
        ({"from": FROM, "colour": "red"}, "from, password, takeover, tls, user, vbuckets"),
    ],
    ids=str,
)
def test_what_is_not_understood_is_refused_with_what_belongs_there(
    here: Desk, asked: dict[str, object], why: str
) -> None:
    status, text = told(here, **asked)
    assert status == Status.EINVAL and why in text and following(here) == {}


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"7", b"\xff", b"[" * 100_000], ids=len)
def test_a_value_that_is_no_object_is_refused(here: Desk, value: bytes) -> None:
    assert here.session().one(Opcode.IOCTL_SET, key=b"replicate", value=value).status == Status.EINVAL


def test_another_key_is_refused_by_naming_those_there_are(here: Desk) -> None:
    status, text = told(here, "release_free_memory")
    assert status == Status.EINVAL and "the keys are replicate, replicate.stop, lease" in text


# --------------------------------------------------------------------------- stopping


def test_some_stop_or_all_of_them(here: Desk) -> None:
    told(here, **{"from": FROM, "vbuckets": "1-3"})
    assert told(here, "replicate.stop", **{"from": FROM, "vbuckets": "2"})[0] == Status.SUCCESS
    assert set(following(here)[FROM]) == {1, 3}
    assert told(here, "replicate.stop", **{"from": FROM})[0] == Status.SUCCESS
    assert following(here)[FROM] == {}


def test_what_nothing_follows_can_not_be_stopped(here: Desk) -> None:
    status, text = told(here, "replicate.stop", **{"from": FROM})
    assert status == Status.KEY_ENOENT and f"nothing follows {FROM}" in text


def test_a_stop_takes_no_login(here: Desk) -> None:
    assert told(here, "replicate.stop", **{"from": FROM, "user": "u"})[0] == Status.EINVAL


def test_a_vbucket_that_becomes_active_follows_nobody(here: Desk) -> None:
    told(here, **{"from": FROM, "vbuckets": "1-2"})
    for callback in here.bucket.on_owned:
        callback(1)
    assert set(following(here)[FROM]) == {2}


def test_the_end_of_the_node_ends_them_all(here: Desk) -> None:
    told(here, **{"from": FROM, "vbuckets": "1"})
    here.replication.stop()
    assert following(here) == {FROM: {}}


def test_the_statistics_name_each_producer(here: Desk) -> None:
    told(here, **{"from": FROM, "vbuckets": "1"})
    pairs = [(frame.key, frame.value) for frame in here.session().ask(Opcode.STAT, key=b"replication")]
    assert pairs == [(f"{FROM}:connects".encode(), b"0"), (b"", b"")]


def test_the_statistics_of_one_vbucket_are_those_that_name_it(here: Desk) -> None:
    told(here, **{"from": FROM, "vbuckets": "1"})
    pairs = [(frame.key, frame.value) for frame in here.session().ask(Opcode.STAT, key=b"replication 1")]
    assert pairs[1:] == [(f"{FROM}:vb_1".encode(), b"open"), (b"", b"")]
    (refused,) = here.session().ask(Opcode.STAT, key=b"replication one")
    assert refused.status == Status.EINVAL
