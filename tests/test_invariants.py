"""An invariant that holds costs no text; one that does not is told, raised, and no `-O` takes it away."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headwater import invariants
from headwater.errors import InvariantBroken
from headwater.invariants import invariant, node_invariant
from headwater.pipelines.failures import passes


class NeverShown:
    """A number that must not become text."""

    def __str__(self) -> str:
        raise AssertionError("the text was made")


@pytest.mark.parametrize("check", [invariant, node_invariant])
def test_a_rule_that_holds_makes_no_text(check: type) -> None:
    check(True, "seqno {}", NeverShown())


def test_a_broken_rule_tells_its_numbers(broken_invariants: list[InvariantBroken]) -> None:
    with pytest.raises(InvariantBroken, match="vbucket 7: 20 rows: a rule of headwater's own is broken"):
        invariant(20 <= 16, "vbucket {}: {} rows", 7, 20)
    assert [(each.rule, each.numbers) for each in broken_invariants] == [("vbucket {}: {} rows", (7, 20))]
    broken_invariants.clear()


def test_who_listens_hears_of_it_first_and_whether_it_is_a_nodes(broken_invariants: list[InvariantBroken]) -> None:
    heard: list[bool] = []

    def hear(_: InvariantBroken, of_node: bool) -> None:
        heard.append(of_node)

    invariants.listeners.append(hear)
    for check in (invariant, node_invariant):
        with pytest.raises(InvariantBroken):
            check(False, "no number")
    invariants.listeners.remove(hear)
    assert heard == [False, True]
    broken_invariants.clear()


def test_python_without_assertions_keeps_them() -> None:
    script = "from headwater.invariants import invariant; invariant(0, 'seqno {}', 5)"
    command = [sys.executable, "-O", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1 and "InvariantBroken: seqno 5" in done.stderr


def test_a_job_does_not_try_again_what_broke_one() -> None:
    assert not passes(InvariantBroken("seqno {}", 5))
