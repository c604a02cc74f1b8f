"""The declaration of a transition. Its work is tested beside its function."""

from __future__ import annotations

import pytest

from headwater.errors import OptionError
from headwater.pipelines.jobs import Transition, TransitionProgress


def test_it_tries_for_as_long_as_a_job_without_an_end_and_ends_by_itself() -> None:
    job = Transition(["a:1"], ["b:1"], "x")
    assert (job.once, job.HAS_END, job.dry_run) == (False, True, False)


def test_numbers_have_their_bounds() -> None:
    with pytest.raises(OptionError, match="1 to 1024"):
        Transition(["a:1"], ["b:1"], "x", at_once=0).run()


def test_the_line_tells_how_long_a_vbucket_had_no_owner() -> None:
    progress = TransitionProgress(batches=1, moved=4, total=1024, changes=2000, ownerless_seconds=0.0123, seconds=1.0)
    assert Transition(["a:1"], ["b:1"], "x").line(progress) == (
        "batch 1: 4 of 1,024 vbuckets moved, 2,000 changes in 1.0 s, without an owner for 12 ms at most"
    )
