"""The list of all files with commands, imported so that their handlers are registered (see kv/command.py)."""

from headwater.node.dcp import opening as dcp
from headwater.node.kv import (
    admin,
    buckets,
    clock,
    cluster,
    counters,
    documents,
    hello,
    locking,
    manifests,
    meta,
    observe,
    sasl,
    scans,
    stats,
    subdocs,
    users,
    vbuckets,
)
from headwater.node.replication import command as replication
from headwater.node.tap import consumer as tap_consumer
from headwater.node.tap import hub as tap

_DOCUMENTS = (counters, documents, locking, meta, scans, subdocs)
_KV = (*_DOCUMENTS, admin, buckets, clock, cluster, hello, manifests, observe, sasl, stats, users, vbuckets)
ALL = (*_KV, dcp, replication, tap, tap_consumer)
