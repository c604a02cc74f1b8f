"""Several nodes as one bucket, in a block: they are a cluster, and survive one of them."""

from __future__ import annotations

import pytest

from headwater import testing
from headwater.errors import ClusterError


def test_a_cluster_has_an_owner_and_a_replica_of_each_vbucket_and_goes_on_without_one_node() -> None:
    with testing.cluster(vbuckets=16) as cluster, cluster.client() as bucket:
        assert len(cluster.nodes) == 3 and all(node.address in cluster.url for node in cluster.nodes)
        assert bucket.map.vbuckets == 16 and bucket.map.replica_count == 1
        bucket.set_many((f"k{number}", "v") for number in range(100))
        with pytest.raises(ClusterError):
            cluster.fail_over(cluster.nodes[0])  # it answers
        cluster.nodes[0].kill()
        assert 5 <= cluster.fail_over(cluster.nodes[0]) <= 6
        bucket.set_many((f"k{number}", "w") for number in range(100))
        assert {each.value for each in bucket.get_many(f"k{number}" for number in range(100)).values()} == {b"w"}
