"""The node as a member of a cluster: the cluster map that contains this node, kept on disk, and its effects on the
node.
"""
