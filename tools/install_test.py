"""Install the wheel in dist/ into empty environments without a compiler, and use it: `make dist-test`.

For each Python that is named, or each of 3.11 to 3.14 that is installed: an environment with wheels only; the version,
the man pages, a node that stores and returns a document, a node without a writable home, and the fixtures of pytest.
`OTHER=1` installs the wheel for all systems instead, whose first node compiles its kernels.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAMES = ("python3.11", "python3.12", "python3.13", "python3.14")
TEST = """
def test_a_document_comes_back(headwater_node):
    with headwater_node.client() as bucket:
        bucket.set("k", "v")
        assert bucket.get("k").value == b"v"
"""
SECONDS = 600
COMPILES = bool(os.environ.get("OTHER"))


def pythons(asked: list[str]) -> list[str]:
    """Return the paths of the Pythons that run: those asked for, or all of NAMES.

    Raises:
        SystemExit: one that was asked for does not run.
    """
    found = []
    for name in asked or NAMES:
        path = shutil.which(name)
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            found.append(path)
        else:
            print(f"{name}: not here", flush=True)
            if asked:
                raise SystemExit(1)
    return found


class Environment:
    """An environment that contains only the packages of the wheel."""

    def __init__(self, python: str, place: Path) -> None:
        self.place, self.bin = place, place / "venv" / "bin"
        subprocess.run([python, "-m", "venv", str(place / "venv")], check=True)
        self.version = self.run("python", "-V").split()[1]

    def variables(self, **more: str) -> dict[str, str]:
        """Return environment variables without a compiler, a shell's paths or settings of ours."""
        keep = {name: text for name, text in os.environ.items() if name.startswith(("PIP_", "SSL_", "http"))}
        return keep | {"PATH": str(self.bin), "HOME": str(self.place), "CC": "/none", "CXX": "/none"} | more

    def run(self, program: str, *words: str, **variables: str) -> str:
        """Run a program of the environment; return its output. A failure is printed and ends the test."""
        done = subprocess.run(
            [str(self.bin / program), *words],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            cwd=self.place,
            env=self.variables(**variables),
        )
        if done.returncode:
            raise SystemExit(f"{program} {' '.join(words)}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    @contextmanager
    def node(self, data: str, **variables: str) -> Iterator[tuple[str, float, list[str]]]:
        """Run a node for a block; yield its address, the seconds until it was ready, and the lines that it had logged
        by then.
        """
        log = self.place / f"{data}.log"
        command = [str(self.bin / "headwater"), "serve", "--port", "0", "--data", data]
        began = time.monotonic()
        with (
            log.open("w") as said,
            subprocess.Popen(
                command, cwd=self.place, env=self.variables(**variables), stdout=subprocess.PIPE, stderr=said, text=True
            ) as process,
        ):
            assert process.stdout is not None
            ready = process.stdout.readline().split()
            try:
                if not ready:
                    raise SystemExit(f"serve ended: {log.read_text()}")
                yield ready[1], time.monotonic() - began, log.read_text().splitlines()
            finally:
                process.terminate()
                process.wait(SECONDS)

    def wait_for_kernels(self, data: str) -> None:
        """Wait until a node's log reports that all kernels are compiled, so that the next start compiles none.

        Raises:
            SystemExit: they were not compiled within SECONDS.
        """
        log, until = self.place / f"{data}.log", time.monotonic() + SECONDS
        while not re.search(r"\b(\d+) of \1 kernels compiled", log.read_text()):
            if time.monotonic() > until:
                raise SystemExit(f"kernels were not compiled: {log.read_text()}")
            time.sleep(0.1)


def size(folder: Path) -> int:
    """Return the number of bytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def check(python: str, wheel: Path) -> None:
    """Install the wheel for one Python, and check everything that is promised of an installation."""
    with tempfile.TemporaryDirectory() as folder:
        it = Environment(python, Path(folder))
        pip = ("-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-cache-dir", "--only-binary", ":all:")
        before = size(it.place / "venv")
        it.run("python", *pip, str(wheel))
        weight = (size(it.place / "venv") - before) / 1e6
        assert it.run("headwater", "--version") == f"headwater {wheel.name.split('-')[1]}\n"
        assert (it.place / "venv" / "share" / "man" / "man1" / "headwater-serve.1").exists()
        assert any((it.place / "venv").glob("lib/*/site-packages/numba")) is COMPILES
        with it.node("cold") as (address, seconds, said):
            assert any("compiling kernels" in line for line in said) is COMPILES, said
            serves(it, address)
            if COMPILES:
                it.wait_for_kernels("cold")
        with it.node("warm") as (address, again, said):
            assert said == [], said
            serves(it, address)
        with it.node("homeless", HOME="/dev/null", TMPDIR=folder) as (address, _, said):
            assert any("HEADWATER_CACHE names" in line for line in said) is COMPILES, said
            serves(it, address)
        it.run("python", *pip, "pytest")
        (it.place / "test_it.py").write_text(TEST)
        assert "1 passed" in it.run("python", "-m", "pytest", "-q", "test_it.py")
        print(
            f"Python {it.version}: installed with wheels only, {weight:.0f} MB; first start {seconds:.1f} s, the next "
            f"{again:.1f} s; serves without a home; the fixtures of pytest work",
            flush=True,
        )


def serves(it: Environment, address: str) -> None:
    """Check that a node stores and returns a document."""
    node = {"HEADWATER_NODE": f"couchbase://{address}/default"}
    assert "cas" in json.loads(it.run("headwater", "set", "greeting", "hello", "--json", **node))
    assert it.run("headwater", "get", "greeting", **node) == "hello"


def main() -> int:
    """Check every Python; return the exit status. At least one Python must be installed."""
    (wheel,) = (ROOT / "dist").glob("other/*-any.whl" if COMPILES else "*.whl")
    found = pythons(sys.argv[1:])
    for python in found:
        check(python, wheel)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
