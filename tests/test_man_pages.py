"""The man pages: what the commands say now, and nothing that man finds fault with."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.test_docs import ROOT, load

FOLDER = ROOT / "man"
PAGES = sorted(FOLDER.glob("*.1"))


def test_the_pages_are_what_the_commands_say_now() -> None:
    made = load(ROOT / "tools" / "man_pages.py").pages()
    assert {path.name: path.read_text("utf-8") for path in PAGES} == made, "stale: run `make man`"


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_man_shows_a_page_without_a_warning(page: Path) -> None:
    done = subprocess.run(
        ["man", "--warnings=w", "--local-file", str(page)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PATH": "/usr/bin:/bin", "MANROFFSEQ": "", "MANWIDTH": "80", "LC_ALL": "C.UTF-8"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "SYNOPSIS" in done.stdout
