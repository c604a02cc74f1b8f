"""Build wheels and sdist of the commit that is checked out, twice in two places, and check that both give the same
bytes.

`make dist` runs this: a wheel for this system with the kernels' machine code, and in dist/other one for all systems,
which needs numba. `--target aarch64-linux-gnu.2.17` adds one for another system there. Uncommitted changes are left
out, since the files come from git.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from native.targets import TARGETS, Target, here  # noqa: E402 -- found by the line above

DIST, OTHER = ROOT / "dist", "other"


def git(*words: str) -> str:
    """Run git; return its output."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def unpacked(place: Path) -> Path:
    """Unpack the commit into an empty folder; return the folder of its files."""
    source = place / "source"
    source.mkdir()
    with tempfile.TemporaryFile() as archive:
        subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=archive)
        archive.seek(0)
        with tarfile.open(fileobj=archive) as files:
            files.extractall(source, filter="data")
    return source


def built(place: Path, mask: int, targets: Sequence[Target]) -> dict[str, Path]:
    """Build sdist and wheels in an empty folder, with a umask of their own; return the files by name."""
    source, out = unpacked(place), place / "out"
    epoch = {"SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct")}
    run([sys.executable, "-m", "hatchling", "build", "-d", str(out)], source, mask, epoch)
    for target in targets:
        library = place / target.name / "_machine.abi3.so"
        run([sys.executable, "-m", "native", str(library), "--target", target.name], source, mask, {})
        variables = epoch | {"HEADWATER_LIBRARY": str(library), "HEADWATER_WHEEL_TAG": target.tag}
        run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)], source, mask, variables)
    return {path.name: path for path in out.iterdir()}


def run(command: Sequence[str], folder: Path, mask: int, variables: Mapping[str, str]) -> None:
    """Run a command of the build in a folder, with a umask and additional environment variables."""
    environment = os.environ | variables | {"PYTHONPATH": f"{folder}:{folder / 'src'}"}
    subprocess.run(command, cwd=folder, check=True, env=environment, umask=mask, stdout=subprocess.DEVNULL)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hex, as sha256sum prints it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> int:
    """Build twice, compare, and copy the files to dist/ with their digests; return the exit status."""
    parser = argparse.ArgumentParser(prog="tools/dist.py", description="Build wheels and sdist into dist/.")
    parser.add_argument("--target", action="append", choices=list(TARGETS), default=[], help="another system, too")
    arguments = parser.parse_args()
    targets = [here(), *(TARGETS[name] for name in arguments.target)]
    if git("status", "--porcelain", "--untracked-files=no"):
        print("dist: what is changed and not committed is left out", file=sys.stderr)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        first, second = built(Path(one), 0o022, targets), built(Path(other), 0o077, targets)
        different = [name for name in first if digest(first[name]) != digest(second[name])]
        if different or first.keys() != second.keys():
            print(f"dist: not the same bytes twice: {', '.join(different or first)}", file=sys.stderr)
            return 1
        shutil.rmtree(DIST, ignore_errors=True)
        (DIST / OTHER).mkdir(parents=True)
        lines = []
        for name, path in sorted(first.items()):
            place = name if name.endswith((".tar.gz", f"{here().tag}.whl")) else f"{OTHER}/{name}"
            shutil.copyfile(path, DIST / place)
            lines.append(f"{digest(path)}  {place}\n")
            print(f"{place}: {path.stat().st_size:,} bytes, the same twice")
        (DIST / "SHA256SUMS").write_text("".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
