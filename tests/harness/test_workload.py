"""Writers and followers on a node that nothing happens to."""

from random import Random

from harness.checker import Ledger, Shown
from harness.workload import Follower, Writer, everything, read_back
from headwater.testing.embedded import embedded
from headwater.testing.faults import FaultyDisk


def test_all_that_is_written_is_followed_read_back_and_resumed() -> None:
    ledger = Ledger()
    with embedded(disk=FaultyDisk()) as node:
        url = f"couchbase://127.0.0.1:{node.port}/default"
        follower = Follower(ledger, url)
        follower.start()
        for seed in range(2):
            writer = Writer(ledger, 1, node.port, vbuckets=4, random=Random(seed), keys=20)
            writer.start()
            while ledger.acknowledged < 200 * (seed + 1):
                writer.join(0.01)
            writer.stopping.set()
            writer.end()
            follower.stop()
            ledger.settle(everything(url))
            follower = Follower(ledger, url, follower.saved, follower.held)
            follower.catch_up()
            there: dict[tuple[int, bytes], Shown] = {(one.vbucket, one.key): one for one in everything(url)}
            assert follower.held == there
            read_back(url, there)
            follower.start()
        follower.stop()
    assert ledger.lost_unknown == ledger.recovered == 0 and len(there) == 20
