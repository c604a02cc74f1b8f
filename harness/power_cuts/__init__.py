"""Power cuts under real processes: a file system that keeps only synced data, and checks of what must be there
afterwards.

tree:        the files and folders of such a disk, and its state after a power cut
filesystem:  the disk as a program that mounts it (FUSE)
mounted:     that program, seen from a test: mount, cut, mount the rest
nodes, lake: a node, and a mirror into a table, whose disk is cut again and again
"""
