"""Old chains go, whole; whoever is killed meanwhile leaves nothing that counts by half."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headwater.backup.archive import Archive, folder
from headwater.backup.place import Folder
from headwater.backup.prune import carry_out, plan
from headwater.backup.verify import verify
from headwater.errors import BackupError, OptionError
from headwater.testing import Node
from tests.backup.support import backed_up, fill

DAY = timedelta(days=1)


@pytest.fixture
def chains(bucket: Node, tmp_path: Path) -> list[str]:
    """Two full backups with an increment each, and a third alone."""
    made = []
    for full in (True, False, True, False, True):
        fill(bucket, "a", 10)
        made.append(backed_up(bucket, tmp_path, full=full).id)
    return made


def test_full_backups_go_with_all_that_goes_on_from_them(chains: list[str], tmp_path: Path) -> None:
    assert carry_out(Folder(tmp_path), 2, None).backups == tuple(chains[:2])
    left = Archive(Folder(tmp_path))
    assert sorted(left.backups) == chains[2:]
    assert verify(left).problems == []
    assert carry_out(Folder(tmp_path), 1, None).backups == tuple(chains[2:4])
    assert carry_out(Folder(tmp_path), 1, None).backups == ()


def test_age_is_that_of_a_chains_newest_backup_and_the_newest_chain_stays(chains: list[str], tmp_path: Path) -> None:
    archive = Archive(Folder(tmp_path))
    later = datetime.now(UTC) + 30 * DAY
    assert plan(archive, None, 7 * DAY, lambda: later).backups == tuple(chains[:4])
    assert plan(archive, 2, 7 * DAY, lambda: later).backups == tuple(chains[:2])
    assert plan(archive, None, 7 * DAY).backups == ()
    assert sorted(Archive(Folder(tmp_path)).backups) == chains


@pytest.mark.parametrize(("keep", "age"), [(None, None), (0, None), (-1, DAY)])
def test_what_stays_must_be_said_and_be_something(keep: int | None, age: timedelta | None, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="keep"):
        plan(Archive(Folder(tmp_path)), keep, age)


@pytest.mark.parametrize("step", ["removing", "removed"])
def test_a_prune_that_was_killed_is_finished_by_the_next(step: str, chains: list[str], tmp_path: Path) -> None:
    code = (
        "import sys; from headwater.backup.prune import carry_out; from headwater.backup.place import Folder; "
        "carry_out(Folder(sys.argv[1]), 1, None)"
    )
    environment = {**os.environ, "HEADWATER_FAILPOINTS": f"backup.{step}=kill"}
    asked = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(asked, env=environment, timeout=200, check=False).returncode == -9
    found = Archive(Folder(tmp_path))
    assert (sorted(found.backups), verify(found).problems) == (chains[4:], [])
    carry_out(Folder(tmp_path), 1, None)
    left = Archive(Folder(tmp_path))
    assert left.index is not None
    assert (left.index.removing, left.unfinished) == ((), [])
    assert not any((tmp_path / folder(name)).exists() for name in chains[:4])


def test_a_place_without_a_backup_is_an_error_and_stays_as_it_is(tmp_path: Path) -> None:
    place = tmp_path / "mistyped"
    with pytest.raises(BackupError, match="there is no backup here"):
        carry_out(Folder(place), 1, None)
    with pytest.raises(BackupError, match="there is no backup here"):
        plan(Archive(Folder(place)), 1, None)
    assert not place.exists()
