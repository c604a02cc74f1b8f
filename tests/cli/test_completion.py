"""The completion of the shell, in a real bash."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMPLETE = """
PATH="{folder}:$PATH"
source <({program} --show-completion bash)
complete -p headwater >/dev/null || exit 3
COMP_WORDS=({words}); COMP_CWORD={at}
$(complete -p headwater | sed 's/.*-F \\([^ ]*\\) .*/\\1/') headwater
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
PROGRAM = Path(sys.executable).parent / "headwater"


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["headwater", "fail"], {"failover", "failover-log"}),
        (["headwater", "backup", "re"], {"restore"}),
        (["headwater", "mirror", "--engine", "lo"], {"local"}),
        (["headwater", "config", "check", "--skip"], {"--skip-files"}),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_bash_completes_commands_options_and_choices(words: list[str], found: set[str]) -> None:
    script = COMPLETE.format(folder=PROGRAM.parent, program=PROGRAM, words=" ".join(words), at=len(words) - 1)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == found
