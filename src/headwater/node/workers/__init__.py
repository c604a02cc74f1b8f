"""Several processes that serve one address: each a member of a cluster, with a folder, a port and vbuckets of its own.

See docs/decisions/0142.
"""
