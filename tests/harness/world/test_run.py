"""A whole cluster in simulated time: the same seed, the same run; and a few seeds of it, always the same."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.world.plan import plan_of
from harness.world.run import run
from harness.world.shrinking import run_seed
from harness.world.steps import Fault
from headwater.kernels import builds
from tests.battery import few_of

ROOT = Path(__file__).parents[3]
COMPILED = ("index.index_frame", "index.lookup")
ASKS = "from harness.world.shrinking import run_seed; print('digest', run_seed({seed}, 120).digest)"


def digest_in_a_process(seed: int, hash_seed: str, cache: str = "") -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed} | ({"HEADWATER_CACHE": cache} if cache else {})
    asked = [sys.executable, "-c", ASKS.format(seed=seed)]
    done = subprocess.run(asked, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.partition("digest ")[2].strip()


@pytest.mark.parametrize("seed", [8, 3], ids=["with users and a second bucket", "with damage"])
def test_the_same_seed_is_the_same_run_in_another_process_with_other_hashes(seed: int) -> None:
    plan = plan_of(seed, 120)
    assert plan.has_users == plan.has_orders == (seed == 8) != any(step.fault is Fault.FLIP for step in plan.steps)
    assert len(found := digest_in_a_process(seed, "1")) == 16
    assert digest_in_a_process(seed, "77") == found


@pytest.mark.skipif(not builds.compiling(), reason="there is machine code for all kernels, so none is compiled")
def test_the_same_seed_is_the_same_run_while_kernels_are_compiled(tmp_path: Path) -> None:
    """Not all of them, which takes half a minute: two that every world calls."""
    kept = builds.cache_folder()
    assert kept is not None
    found = digest_in_a_process(3, "1")  # behind this no kernel of the seed is missing
    partial = tmp_path / kept.name
    shutil.copytree(kept, partial, ignore=shutil.ignore_patterns("*.lock", *(f"{name}-*" for name in COMPILED)))
    assert digest_in_a_process(3, "1", str(tmp_path)) == found
    assert all(any(partial.glob(f"{name}-*.nbc")) for name in COMPILED)


def test_another_seed_is_another_run() -> None:
    assert run_seed(3, 40).digest != run_seed(4, 40).digest


@pytest.mark.parametrize("seed", few_of(range(1, 13), 1, 2))
def test_what_is_promised_holds_whatever_befalls_a_cluster(seed: int) -> None:
    outcome = run_seed(seed, 200)
    assert not outcome.broken, outcome.broken
    assert outcome.counts["keys judged"]


def test_without_faults_every_operation_is_answered() -> None:
    outcome = run(replace(plan_of(5, 100), steps=()))
    assert not outcome.broken
    assert {operation.outcome.value for operation in outcome.history.operations} <= {
        "done",
        "missing",
        "exists",
        "not_stored",
    }
