"""The owners of vbuckets: the cluster map that clients get, and the lease of the operator who changes it."""
