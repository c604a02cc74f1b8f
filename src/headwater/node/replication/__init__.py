"""Following another node: IOCTL_SET, and the connections that this node opens to producers."""
