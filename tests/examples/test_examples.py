"""Each example is run as its reader would run it."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "examples"


def run(*arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_tailing_twice_shows_each_change_once() -> None:
    lines = run("tail_changes.py")
    second = lines.index("second visit")
    assert lines[0] == "first visit"
    assert sorted(lines[1:second]) == ["stored apple green", "stored pear yellow"]
    assert sorted(lines[second + 1 :]) == ["gone pear", "stored apple red"]


def test_the_cache_drops_what_changed() -> None:
    assert run("cache_invalidation.py") == ["read 10", "after the change 12"]


def test_a_bucket_drained_into_arrow_has_the_newest_value_of_each_key() -> None:
    changes, keys, size = run("arrow_batches.py")
    assert (keys, size) == ("keys 100", "bytes of values 400")
    assert changes == "changes 100"


def test_pytest_with_a_node_passes() -> None:
    assert "3 passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_orders.py")[-1]


@pytest.mark.spark
def test_a_spark_batch_counts_the_changes_by_kind() -> None:
    assert run("spark_count.py") == ["deletion 100", "mutation 900"]


def test_every_example_is_run_here_and_named_in_the_list() -> None:
    scripts = {path.name for path in FOLDER.glob("*.py")}
    here, listed = Path(__file__).read_text(), (FOLDER / "README.md").read_text()
    assert [name for name in scripts if f'"{name}"' not in here or f"({name})" not in listed] == []
