"""Whole nodes in one thread, on a clock, a network and disks that are simulated: the same seed, the same run."""
