"""A command line for each command on several nodes, and the nodes it meets: each ends well."""

from collections.abc import Callable
from typing import Any

from tests.cluster.fakes import FakeMembers, FakeNode
from tests.cluster.views import A, B, C, a_map, survey, view

LEVEL = a_map("AB", "BC", "CA")
INIT = ("cluster", "init", "node-a:11210", "node-b:11210")
FAILOVER = ("cluster", "failover", "node-b:11210", "--dead", "node-a:11210")
REBALANCE = ("cluster", "rebalance", "node-a:11210")


def empty() -> FakeMembers:
    return FakeMembers(FakeNode(A, ". ."), FakeNode(B, ". ."))


def well() -> FakeMembers:
    return FakeMembers(found=survey(LEVEL))


def joining() -> FakeMembers:
    alone = a_map("A", "A", "A", "A", servers=(A,), replicas=0)
    return FakeMembers(found=survey(alone, B=view(B, ". . . .", None)))


def without_a() -> FakeMembers:
    held = [FakeNode(A, is_gone=True), FakeNode(B, "r A ."), FakeNode(C, ". r A")]
    return FakeMembers(*held, found=survey(LEVEL, A=view(A, "", LEVEL, error="connection refused")))


MEMBERS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "cluster init --dry-run": (empty, (*INIT, "--dry-run")),
    "cluster init": (empty, INIT),
    "cluster status": (well, ("cluster", "status", "node-a:11210")),
    "cluster rebalance --dry-run": (joining, (*REBALANCE, "--add", "node-b:11210", "--dry-run")),
    "cluster failover --dry-run": (without_a, (*FAILOVER, "--dry-run")),
    "cluster failover": (without_a, (*FAILOVER, "--yes")),
    "cluster tls": (well, ("cluster", "tls", "node-a:11210", "--off")),
}
