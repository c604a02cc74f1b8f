"""Moving 64 vbuckets with a million items of 256 bytes while a writer stores 5,000 documents a second.

Two nodes, the writer and the mover are a process each, on one machine. The writer follows the vbuckets by
NOT_MY_VBUCKET and the map that comes with it; the map is given to both nodes as soon as a vbucket is owned by the
other. Printed are the items moved a second, and for each vbucket how long it refused writes: from the sending of the
first refused write to the answer of the first accepted one. At the end every acknowledged document is read from the new
owner.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from multiprocessing.connection import Connection

from benchmarks.bench_streams import load
from benchmarks.harness import Figure, publish
from benchmarks.roaming import Report, roam
from headwater import testing
from headwater.client.routing import Address
from headwater.cluster.admin import Endpoint, NodeAdmin
from headwater.cluster.mover import Moved, Mover

ITEMS = 1_000_000
VBUCKETS = 64
WRITES_PER_SECOND = 5_000
REFUSAL_SECONDS_MAX = 0.1
CONCURRENCY = 4
WARM_UP_SECONDS = 1.0
PERCENTILES = (50, 90, 99, 100)


class Map:
    """The cluster map that both nodes are given. Of each vbucket it has the owner's index: 0 is the source, 1 the
    target.
    """

    def __init__(self, nodes: list[NodeAdmin]) -> None:
        self.owners = [0] * VBUCKETS
        self._nodes, self._rev = nodes, 0

    async def owned(self, vb: int) -> None:
        """Note that the target owns a vbucket now, and give both nodes the map."""
        self.owners[vb] = 1
        await self.push()

    async def push(self) -> None:
        """Give both nodes the map, the old owner too: it sends the map that it was given with its refusals."""
        self._rev += 1
        servers = [str(node.address) for node in self._nodes]
        vbuckets = {"hashAlgorithm": "CRC", "numReplicas": 0, "serverList": servers}
        told = {"rev": self._rev, "revEpoch": 2, "name": "default", "nodeLocator": "vbucket"}
        told |= {
            "nodesExt": [{"hostname": node.address.host, "services": {"kv": node.address.port}} for node in self._nodes]
        }
        told |= {"vBucketServerMap": vbuckets | {"vBucketMap": [[owner] for owner in self.owners]}}
        config = json.dumps(told).encode()
        await asyncio.gather(*(node.set_config(2, self._rev, "default", config) for node in self._nodes))


async def move(source: testing.Node, target: testing.Node, control: Connection) -> tuple[list[Moved], float]:
    """Move all vbuckets while the writer writes; return the outcome of each move, and the seconds that all took."""
    ends = [Endpoint(Address(node.host, node.port)) for node in (source, target)]
    nodes = [await NodeAdmin.connect(end) for end in ends]
    told = Map(nodes)
    await told.push()
    control.send("go")
    await asyncio.sleep(WARM_UP_SECONDS)
    async with Mover(*ends, concurrency=CONCURRENCY, on_owned=told.owned) as mover:
        began = time.perf_counter()
        moved = await asyncio.gather(*(mover.move(vb) for vb in range(VBUCKETS)))
        seconds = time.perf_counter() - began
    await asyncio.sleep(WARM_UP_SECONDS / 2)
    for node in nodes:
        node.close()
    return moved, seconds


def lost(target: testing.Node, report: Report) -> int:
    """Return how many acknowledged documents the new owner does not have, or has in an older version."""
    with target.client() as bucket:
        found = bucket.get_many(report.held)
    return sum(key not in found or int(found[key].value.split()[0]) < number for key, number in report.held.items())


def distribution(name: str, seconds: list[float], target: float | None = None) -> None:
    """Print and publish percentiles, in milliseconds."""
    ordered = sorted(seconds) or [0.0]
    found = [1000 * ordered[min(len(ordered) - 1, len(ordered) * percentile // 100)] for percentile in PERCENTILES]
    shown = ", ".join(
        f"{'max' if each == 100 else f'p{each}'} {ms:.1f}" for each, ms in zip(PERCENTILES, found, strict=True)
    )
    verdict = (
        "" if target is None else f"; target < {1000 * target:.0f}: {'met' if found[-1] < 1000 * target else 'MISSED'}"
    )
    print(f"{name}: {shown} ms{verdict}", flush=True)


def main() -> None:
    """Measure and print."""
    ours, theirs = multiprocessing.Pipe()
    with (
        testing.node(vbuckets=VBUCKETS) as source,
        testing.node(vbuckets=VBUCKETS, vbucket_state="none") as target,
    ):
        load(source, ITEMS)
        ports = [source.port, target.port]
        writer = multiprocessing.get_context("spawn").Process(
            target=roam, args=(theirs, ports, [0] * VBUCKETS, WRITES_PER_SECOND)
        )
        writer.start()
        ours.recv()
        moved, seconds = asyncio.run(move(source, target, ours))
        ours.send("stop")
        report: Report = ours.recv()
        writer.join()
        missing = lost(target, report)
    rate = sum(each.changes for each in moved) / seconds
    publish(Figure("move 64 vbuckets, 1 M items of 256 bytes, under writes", "items/s", rate, rate, rate))
    distribution("writes refused, for each vbucket", list(report.gaps.values()), REFUSAL_SECONDS_MAX)
    distribution("without an owner, as the mover saw it", [each.ownerless_seconds for each in moved])
    distribution("time to acknowledge a write, all the while", report.latencies)
    print(f"{len(report.latencies):,} writes acknowledged, {report.refused:,} refusals, {missing} acknowledged lost")
    if missing:
        raise AssertionError(f"{missing} acknowledged writes are not at the new owner")


if __name__ == "__main__":
    main()
