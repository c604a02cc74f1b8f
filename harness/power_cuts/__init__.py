"""Power cuts under real processes: a file system that keeps only what was synced, and what has to be there afterwards.

tree:        the files and folders of such a disk, and what a power cut leaves of them
filesystem:  the disk as a program that mounts it (FUSE)
mounted:     that program, seen from a test: mount, cut, mount what is left
nodes, lake: a node, and a mirror into a table, whose disk is cut again and again
"""
