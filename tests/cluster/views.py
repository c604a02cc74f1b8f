"""Surveys for tests, written as tables: what each node has of each vbucket, a letter each.

    survey("A r .", B="r A d")    the map is given, the nodes are A, B, C by their letters

`A` active, `r` replica, `p` pending, `d` dead, `.` not there.
"""

from headwater.client.routing import Address
from headwater.cluster.survey import NodeView, Survey
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.vbucket import State

NODES = {letter: Address(f"node-{letter.lower()}", 11210) for letter in "ABCDE"}
A, B, C, D, E = NODES.values()
STATES = {"A": State.ACTIVE, "r": State.REPLICA, "p": State.PENDING, "d": State.DEAD}
UUID = "cd" * 16


def a_map(*chains, servers=(A, B, C), replicas=1, rev=7, uuid=UUID):
    """Chains as texts: "AB" is owned by A with a replica on B, "-B" is owned by nobody."""
    places = {letter: servers.index(node) for letter, node in NODES.items() if node in servers} | {"-": -1}
    return ClusterMap(
        "b", uuid, 1, rev, tuple(servers), tuple(tuple(places[x] for x in chain) for chain in chains), replicas
    )


def view(address, states, found, *, seqnos=None, complete=None, error="", version=None, this=None, **counts):
    """One node; seqnos are 10 everywhere unless given, and copies are complete up to there."""
    if error:
        return NodeView(address, error=error)
    held = {vb: STATES[letter] for vb, letter in enumerate(states.split()) if letter != "."}
    return NodeView(
        address,
        map=found,
        version=version or (found.version if found else (1, 3)),
        vbuckets=len(states.split()),
        uuid=found.uuid if found else "ef" * 16,
        this=this or (address if found and address in found.servers else None),
        states=held,
        seqnos=dict.fromkeys(held, 10) if seqnos is None else dict(zip(held, seqnos, strict=True)),
        complete={} if complete is None else dict(zip(held, complete, strict=True)),
        items=dict.fromkeys(held, 5),
        **counts,
    )


def survey(found, **nodes):
    """A survey of a map; nodes that are not given have what the map says."""
    views = {}
    for letter, address in NODES.items():
        if letter in nodes and isinstance(nodes[letter], NodeView):
            views[address] = nodes[letter]
        elif letter in nodes:
            views[address] = view(address, nodes[letter], found)
        elif address in found.servers:
            owned, replicas = found.held_by(address)
            told = ["A" if vb in owned else "r" if vb in replicas else "." for vb in range(found.vbuckets)]
            views[address] = view(address, " ".join(told), found)
    return Survey(found, views)
