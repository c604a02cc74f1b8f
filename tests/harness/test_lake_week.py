"""Two weeks of a mirror's log: nothing adds up."""

from pathlib import Path

from harness.lake_week import weeks


def test_two_simulated_weeks_have_checkpoints_of_one_size(tmp_path: Path) -> None:
    """The second is as the first: what a mirror does again and again does not add up."""
    batches, files = 320, 6
    seen = list(weeks(tmp_path, batches, files, every=40))
    assert seen[-1].removed > 0.9 * batches * files
    assert max(each.kept for each in seen) <= batches / 2 / 8 + files  # one for each file that went within the week
    middle, last = seen[len(seen) // 2], seen[-1]
    assert last.kept <= middle.kept + 1 and last.size <= 1.1 * middle.size
