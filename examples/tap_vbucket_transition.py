"""Vbucket transition by TAP: a vbucket moves from one node to another while it is written to.

TAP_CONNECT with takeover: the target makes the vbucket pending, gets all there is, then what changed; the source lets
go of it (dead), sends the rest, and says "active" last. So at no time do two nodes serve it, and nothing is lost. TAP
does not know named collections and leaves them behind: `headwater move` takes them along.
"""

from headwater import client, testing
from headwater.client import tap
from headwater.client.tap import relay

VBUCKET = 3

with (
    testing.node(vbuckets=16) as source,
    testing.node(vbuckets=16, vbucket_state="none") as target,
    client.connect(source.url) as before,
    client.connect(target.url, vbuckets=16) as after,
):
    keys = [key for number in range(2000) if before.vbucket_of(key := f"k{number}") == VBUCKET]
    before.set_many((key, "moved") for key in keys)
    with tap.connect(source.url, vbuckets=[VBUCKET], takeover=True) as stream:
        relay(stream, target.url)
    print("source:", before.get_vbucket_state(VBUCKET).name.lower())
    print("target:", after.get_vbucket_state(VBUCKET).name.lower())
    print("missing:", len(set(keys) - {key.decode() for key in after.get_many(keys)}))
