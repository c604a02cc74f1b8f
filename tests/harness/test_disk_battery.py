"""The disk battery, a short one; `make disk-battery` runs it for ten minutes."""

from __future__ import annotations

from pathlib import Path
from shutil import disk_usage

import pytest

from harness import disk_battery
from harness.disk_battery import Battery, main
from harness.small_disk import may_mount, small_filesystem


def has_proved_something(battery: Battery) -> bool:
    """A battery that kills nothing and fills nothing proves nothing."""
    return battery.tally.kills > 0 and battery.ledger.acknowledged > 200 and battery.ledger.observations > 400


if may_mount():

    @pytest.mark.slow
    def test_a_small_disk_full_again_and_again_loses_nothing_and_is_written_to_again(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(disk_battery, "WRITING_AGAIN_SECONDS", 240.0)  # others work on this machine, too
        small = tmp_path / "small"
        with small_filesystem(small, 100):
            battery = Battery(small, disk_usage(small).total, seed=6)
            try:
                while not has_proved_something(battery):
                    battery.run(5.0)
            finally:
                battery.node.kill()

    def test_what_it_did_is_told_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--seconds", "1", "--mebibytes", "60", "--seed", "3"]) == 0
        assert "lost 0, made up 0" in capsys.readouterr().out
