"""The random runs of clusters with a reader of the time: rules hold, and a rule that is left out is found out."""

from __future__ import annotations

import pytest

from harness.simulation.histories import Broken
from harness.times import run


def test_no_change_is_older_than_what_a_reader_had_complete() -> None:
    assert sum(run(seed) for seed in range(1, 21)) > 50


def test_a_node_that_joins_without_the_members_promises_is_found_out() -> None:
    with pytest.raises(Broken, match="before what was said"):
        run(3, levels=False)
