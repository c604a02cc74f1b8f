"""Several processes that serve one address: each is a member of a cluster, with its own folder, port and vbuckets.

See docs/decisions/0142.
"""
