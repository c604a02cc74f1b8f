"""Every file with commands, imported so that their handlers are registered (see command.py)."""

from headwater.node.kv import admin, cluster, counters, documents, hello, meta, observe, sasl, stats, vbuckets

ALL = (admin, cluster, counters, documents, hello, meta, observe, sasl, stats, vbuckets)
