"""Whole nodes in one thread, on a simulated clock, network and disks: the same seed gives the same run."""
