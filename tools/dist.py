"""Build wheel and sdist of the commit that is checked out, twice in two places, and see that both are the same bytes.

`make dist` runs this. What is not committed is not in them: they are built from what git has.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"


def git(*words: str) -> str:
    """Run git; its output."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def built(place: Path, mask: int) -> dict[str, Path]:
    """Build in an empty folder with a mode mask of its own; returns the files by name."""
    source = place / "source"
    source.mkdir()
    with tempfile.TemporaryFile() as archive:
        subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=archive)
        archive.seek(0)
        with tarfile.open(fileobj=archive) as files:
            files.extractall(source, filter="data")
    epoch = git("log", "-1", "--format=%ct")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(place / "out")],
        cwd=source,
        check=True,
        env=os.environ | {"SOURCE_DATE_EPOCH": epoch},
        umask=mask,
        stdout=subprocess.DEVNULL,
    )
    return {path.name: path for path in (place / "out").iterdir()}


def digest(path: Path) -> str:
    """SHA-256, as sha256sum prints it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> int:
    """Build, compare, and put the files into dist/ with their digests."""
    if git("status", "--porcelain", "--untracked-files=no"):
        print("dist: what is changed and not committed is left out", file=sys.stderr)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        first, second = built(Path(one), 0o022), built(Path(other), 0o077)
        different = [name for name in first if digest(first[name]) != digest(second[name])]
        if different or first.keys() != second.keys():
            print(f"dist: not the same bytes twice: {', '.join(different or first)}", file=sys.stderr)
            return 1
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        lines = []
        for name, path in sorted(first.items()):
            shutil.copyfile(path, DIST / name)
            lines.append(f"{digest(path)}  {name}\n")
            print(f"{name}: {path.stat().st_size:,} bytes, the same twice")
        (DIST / "SHA256SUMS").write_text("".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
