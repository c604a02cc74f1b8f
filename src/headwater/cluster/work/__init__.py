"""Operators' work, each kind declared once: its options, its texts, its plan and its action.

    plan = await DropBucket("carts").plan(members, seeds)
    outcome = await DropBucket("carts").run(members, seeds, WorkRun(plan=plan))

The command line, its help, the man pages and the console's forms are made of these declarations. No slow module is
imported here, since `headwater --help` imports this package.
"""

from headwater.cluster.work.buckets import CreateBucket, DropBucket, SetHistory, SetQuota
from headwater.cluster.work.collections import AlterCollection, CreateCollection, DropCollection
from headwater.cluster.work.declared import NODE, DeclaredWork, WorkOutcome, WorkPlan, WorkRun
from headwater.cluster.work.nodes import EncryptCluster, InitCluster
from headwater.cluster.work.pair import PromoteReplicas
from headwater.cluster.work.placing import FailOver, SpreadVbuckets
from headwater.cluster.work.upkeep import Compact, Flush
from headwater.cluster.work.users import USER_WORKS, AddUser, ChangePassword, ChangeRoles, RemoveUser, WorkOnUser

__all__ = [
    "NODE", "USER_WORKS", "WORKS", "AddUser", "AlterCollection", "ChangePassword", "ChangeRoles", "Compact",
    "CreateBucket", "CreateCollection", "DeclaredWork", "DropBucket", "DropCollection", "EncryptCluster",
    "FailOver", "Flush", "InitCluster", "PromoteReplicas", "RemoveUser", "SetHistory", "SetQuota", "SpreadVbuckets",
    "WorkOnUser", "WorkOutcome", "WorkPlan", "WorkRun",
]  # fmt: skip

WORKS: dict[str, type[DeclaredWork]] = {
    work.KIND: work
    for work in (
        SpreadVbuckets, FailOver, Compact, Flush, CreateBucket, DropBucket, SetQuota, SetHistory, CreateCollection,
        AlterCollection, DropCollection, InitCluster, EncryptCluster, PromoteReplicas,
    )
}  # fmt: skip
"""All kinds of work that have a plan to be shown, by their names in addresses."""
