"""gocbcore's DCPAgent follows a node through crashes and a rollback; see README.md."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.interop.story import follow_through_everything

HERE = Path(__file__).parent
GO = shutil.which("go")

if GO is not None:

    @pytest.mark.interop
    def test_gocbcore_holds_what_the_node_holds_through_crash_and_rollback(tmp_path: Path) -> None:
        binary = tmp_path / "follow"
        build = [str(GO), "build", "-o", str(binary), "."]
        done = subprocess.run(build, cwd=HERE, check=False, capture_output=True, text=True, timeout=540)
        assert done.returncode == 0, done.stderr

        def program(port: int) -> Sequence[str]:
            return [str(binary), str(port)]

        follow_through_everything(program, tmp_path)
