"""The owners of vbuckets: the cluster map for clients, and the lease of the operator who changes it."""
