"""Replication by TAP: a mover pipes what one node sends into another, and the answers back.

The target holds the vbuckets as replicas. It acknowledges what is on its disk; the mover passes that on, so what the
target did not get is sent again. TAP carries the default collection alone; `headwater replicate` carries all of them.
"""

from headwater import client, testing
from headwater.client import tap
from headwater.client.tap import relay

VBUCKETS = range(16)

with testing.node(vbuckets=16) as source, testing.node(vbuckets=16, vbucket_state="none") as target:
    with client.connect(source.url) as writer:
        writer.set_many((f"k{number}", f"v{number}") for number in range(500))
        writer.delete("k7")
    with client.connect(target.url) as admin:
        for vb in VBUCKETS:
            admin.set_vbucket_state(vb, "replica")
        with tap.connect(source.url, dump=True) as stream:
            messages = relay(stream, target.url)
        for vb in VBUCKETS:
            admin.set_vbucket_state(vb, "active")
        print("messages", messages)
        print("first", admin.get("k0").value.decode())
        print("deleted", "k7" not in [key.decode() for key in admin.get_many(["k7"])])
        print("documents", len(admin.get_many(f"k{number}" for number in range(500))))
