"""Every file with commands, imported so that their handlers are registered (see command.py)."""

from headwater.node.kv import admin, cluster, counters, documents, hello, locking, meta, observe, sasl, stats, vbuckets
from headwater.node.tap import consumer as tap_consumer
from headwater.node.tap import hub as tap

ALL = (admin, cluster, counters, documents, hello, locking, meta, observe, sasl, stats, vbuckets, tap, tap_consumer)
