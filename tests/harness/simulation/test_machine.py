"""The model-based test of three nodes, for some seconds and the same examples each time; `make model` runs it long."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from harness.simulation.machine import ClusterMachine

TestCluster = ClusterMachine.TestCase
TestCluster.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
