"""Each example is run as its reader would run it."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import lent_spark, spark

__all__ = ["lent_spark", "spark"]

FOLDER = Path(__file__).parent.parent.parent / "examples"


def run(*arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=FOLDER, capture_output=True, text=True, timeout=540, check=False
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
@pytest.mark.usefixtures("lent_spark")
def test_a_spark_batch_counts_the_changes_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / "spark_count.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines() == ["deletion 100", "mutation 900"]


@pytest.mark.spark
@pytest.mark.battery
def test_it_does_so_with_a_spark_of_its_own() -> None:
    assert run("spark_count.py") == ["deletion 100", "mutation 900"]


def test_tap_replicates_a_node() -> None:
    assert run("tap_replication.py")[1:] == ["first v0", "deleted True", "documents 499"]


def test_tap_observes_what_is_written_and_not_what_was_before() -> None:
    assert run("tap_observation.py") == ["deleted order 1", "stored order 3", "stored user 3"]


def test_tap_empties_a_cache_of_what_changed() -> None:
    assert run("tap_cache_invalidation.py") == ["read 10", "after the change 12"]


def test_tap_feeds_an_index() -> None:
    assert run("tap_external_index.py") == ["red: a b", "red:", "wine: b"]


def test_tap_moves_a_vbucket() -> None:
    assert run("tap_vbucket_transition.py") == ["source: dead", "target: active", "missing: 0"]


def test_every_example_is_run_here_and_named_in_the_list() -> None:
    scripts = {path.name for path in FOLDER.glob("*.py")}
    here, listed = Path(__file__).read_text(), (FOLDER / "README.md").read_text()
    assert [name for name in scripts if f'"{name}"' not in here or f"({name})" not in listed] == []
