"""Exit statuses: what each says, for all commands and for each of them. The reference and the man pages print this."""

from collections.abc import Mapping

from headwater.cluster.work import (
    CreateBucket,
    CreateCollection,
    DropBucket,
    DropCollection,
    EncryptCluster,
    FailOver,
    InitCluster,
    PromoteReplicas,
    SetQuota,
    SpreadVbuckets,
)
from headwater.pipelines.jobs import BucketCopy, Invalidation, Mirror, Observer, TextIndex, Transition

__all__ = ["EXITS", "GENERAL", "UNTIL_ENDED", "exits_of"]

GENERAL: Mapping[int, str] = {
    0: "all went well",
    1: "it failed, or the answer is no; one line on stderr says what and why",
    2: "an option, an argument or a setting is wrong; nothing was begun",
    129: "the terminal was closed (SIGHUP) before the work was done",
    130: "Ctrl-C came before the work was done",
    143: "SIGTERM came before the work was done",
}
EXITS: Mapping[str, Mapping[int, str]] = {
    "serve": {0: "Ctrl-C or SIGTERM ended it, and all is on disk", 1: "the store can't be opened, or the disk is full"},
    "set": {1: "the CAS is another, or the node refused it"},
    "get": {1: "there is no such document"},
    "delete": {1: "there is no such document, or its CAS is another"},
    "tail": {
        0: "--once: all is printed; else Ctrl-C or SIGTERM",
        1: "the history has left the one printed so far, or lacks deletions",
    },
    "load": {1: "a row is no document, or the node refused one; the line says how many are stored, and --skip"},
    "export": {
        1: "a document can't be a row, or the disk is full; no file is left",
        2: "the file exists, among others",
    },
    "console": {0: "Ctrl-C or SIGTERM ended it", 1: "the node refuses the login, or the extra is missing"},
    "demo": {0: "node and table are equal, key by key", 1: "anything differs"},
    "mirror": Mirror.EXITS,
    "index": TextIndex.EXITS,
    "search": {1: "nothing was found"},
    "observe": Observer.EXITS,
    "copy": BucketCopy.EXITS,
    "invalidate": Invalidation.EXITS,
    "lake describe": {1: "there is no table"},
    "lake verify": {1: "an index, a row or the comparison is wrong; each is a line"},
    "lake optimize": {1: "there is no table"},
    "lake vacuum": {1: "there is no table"},
    "lake repair": {1: "there is no table, or nothing of its log can be trusted"},
    "cluster init": InitCluster.EXITS,
    "cluster status": {1: "something needs a hand: it says what"},
    "cluster rebalance": SpreadVbuckets.EXITS,
    "cluster failover": FailOver.EXITS,
    "cluster tls": EncryptCluster.EXITS,
    "backup create": {1: "no new backup was made; called again, it goes on"},
    "backup list": {1: "a backup is damaged or missing"},
    "backup verify": {1: "there is no backup, or a file is missing or not what was written; each is a line on stderr"},
    "backup restore": {1: "a backup is damaged (nothing was written), or the node refused; called again, it goes on"},
    "backup prune": {1: "there is no backup, or the archive is damaged"},
    "bucket create": CreateBucket.EXITS,
    "bucket drop": DropBucket.EXITS,
    "bucket list": {},
    "bucket quota": SetQuota.EXITS,
    "collection create": CreateCollection.EXITS,
    "collection drop": DropCollection.EXITS,
    "collection list": {},
    "user add": {1: "there is such a user, or no node took the change"},
    "user list": {1: "no users were added here"},
    "user roles": {1: "there is no such user, or nobody would be left who may do everything"},
    "user password": {1: "there is no such user"},
    "user remove": {1: "there is no such user, or nobody would be left who may do everything"},
    "tls ca": {2: "there is a CA in the folder"},
    "tls node": {2: "there is no CA, or one of that name, and there is no --renew"},
    "tls user": {2: "there is no CA, or one of that name, and there is no --renew"},
    "tls show": {},
    "config check": {1: "something is wrong in the file; each is a line with its place"},
    "config show": {},
    "seqnos": {},
    "failover-log": {1: "the node has no such vbucket"},
    "streams": {1: "a node does not answer; the others are shown"},
    "tap": {0: "--dump: all is printed; else Ctrl-C or SIGTERM", 1: "the dump ended before all of it came"},
    "replicate": {0: "--once or --stop: done; else Ctrl-C, and the node goes on following", 1: "the node can't follow"},
    "move": {0: "all are moved or copied; --follow: Ctrl-C", 1: "a vbucket was not; typed again, it goes on"},
    "transition": Transition.EXITS,
    "failover": PromoteReplicas.EXITS,
}
"""The meaning of a status, of a command in particular."""
UNTIL_ENDED = frozenset({"serve", "console"})
"""Commands whose work has no end of its own: a signal is how they end well, so they have no status for one."""


def exits_of(command: str) -> dict[int, str]:
    """Return all statuses that a command can end with. What runs until it is ended has none for a signal."""
    general = {status: text for status, text in GENERAL.items() if status < 128 or command not in UNTIL_ENDED}
    return dict(sorted({**general, **EXITS[command]}.items()))
