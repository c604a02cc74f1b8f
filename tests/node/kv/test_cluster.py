"""The cluster map."""

import json
from struct import pack

from tests.node.support import Talk

GET_CONFIG, SET_CONFIG = 0xB5, 0xB4


def test_the_golden_minimum(talk: Talk) -> None:
    talk.hello(7, 0x0B)
    answer = talk.one(GET_CONFIG)
    found = json.loads(answer.value)
    assert answer.datatype == 1 and found["rev"] > 0 and found["nodeLocator"] == "vbucket"
    assert found["nodesExt"] == [{"services": {"kv": 11210, "mgmt": 11210}, "thisNode": True}]
    assert len(found["nodes"]) == 1 and len(found["uuid"]) == 32 and found["name"] == "default"
    assert found["vBucketServerMap"]["vBucketMap"] == [[0], [0], [0], [0]]
    assert "collections" in found["bucketCapabilities"]


def test_vbuckets_that_are_not_active_have_no_owner_and_the_revision_rises(talk: Talk) -> None:
    before = json.loads(talk.one(GET_CONFIG).value)["rev"]
    talk.one(0x3D, extras=b"\2", vbucket=2)
    found = json.loads(talk.one(GET_CONFIG).value)
    assert found["rev"] > before and found["vBucketServerMap"]["vBucketMap"] == [[0], [0], [-1], [0]]


def test_a_client_that_knows_the_revision_gets_nothing(talk: Talk) -> None:
    found = json.loads(talk.one(GET_CONFIG).value)
    assert talk.one(GET_CONFIG, extras=pack(">qq", 1, found["rev"])).value == b""
    assert talk.one(GET_CONFIG, extras=pack(">qq", 1, found["rev"] - 1)).value != b""
    for known in ((1, 0), (0, 1), (-2, 5)):
        assert talk.one(GET_CONFIG, extras=pack(">qq", *known)).status == 4


TABLE = b'"vBucketServerMap":{"serverList":["a:1"],"vBucketMap":[[0]]}'


def test_a_map_that_was_set_goes_with_every_refusal(talk: Talk) -> None:
    talk.hello(7, 0x0B)
    assert talk.one(0, key=b"k", vbucket=99).value == b""
    config = b'{"rev":5,%b}' % TABLE
    assert talk.one(SET_CONFIG, key=b"default", extras=pack(">qq", 1, 5), value=config).status == 0
    refused = talk.one(0, key=b"k", vbucket=99)
    assert (refused.status, refused.value, refused.datatype) == (7, config, 1)
    assert talk.one(GET_CONFIG).value == config


def test_older_maps_and_nonsense_are_refused(talk: Talk) -> None:
    talk.one(SET_CONFIG, extras=pack(">qq", 2, 5), value=b"{%b}" % TABLE)
    assert talk.one(SET_CONFIG, extras=pack(">qq", 1, 9), value=b"{%b}" % TABLE).status == 2
    assert talk.one(SET_CONFIG, extras=pack(">qq", 2, 9), value=b"[").status == 4
    assert talk.one(SET_CONFIG, extras=pack(">qq", 2, 9), value=b"[]").status == 4
    assert talk.one(SET_CONFIG, key=b"other", extras=pack(">qq", 2, 9), value=b"{}").status == 1
