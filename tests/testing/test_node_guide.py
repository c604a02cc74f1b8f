"""The guide for tests of one's own is run as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "testing.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
TITLES = re.findall(r"^## (.+?)$(?=[^#]*^```python)", PAGE, re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS[1:], ids=TITLES[1:])
def test_a_block_of_the_guide_runs(block: str) -> None:
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stderr
