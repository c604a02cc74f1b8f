"""The patches: read, and applied to a copy of the product.

A patch is a unified diff with a heading above it:

    Title: An answer goes out before its batch is on disk
    Breaks: acknowledged means durable
    Judge: failovers
    Seed: 3
    Seconds: 8

`Seed` is one by which the judge is known to find it, within so many seconds; it is tried first. A mutant that no judge
finds yet has neither.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["FOLDER", "ROOT", "Mutant", "Stale", "apply", "every", "files_of", "planted", "read"]

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = Path(__file__).parent / "patches"
_DIFF: Final = "diff --git "


class Stale(Exception):  # noqa: N818 - a state of a patch
    """A patch that does not apply to the present product, or whose heading lacks a line."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One seeded bug.

    Attributes:
        name: that of its file. title: the bug, in a sentence. breaks: the promise.
        judge: the judge that must find it (judges.JUDGES).
        seed: the seed by which that judge is known to find it; None if none is known.
        seconds: how long that took when it was measured, the start of the process included; infinite if it was not.
    """

    name: str
    path: Path
    title: str
    breaks: str
    judge: str
    seed: int | None
    seconds: float


def read(path: Path) -> Mutant:
    """Read the heading of a patch. Raises Stale if a line is missing."""
    heading = path.read_text("utf-8").partition(_DIFF)[0]
    lines = dict(line.split(": ", 1) for line in heading.splitlines() if ": " in line)
    try:
        seed = int(lines["Seed"]) if "Seed" in lines else None
        seconds = float(lines.get("Seconds", "inf"))
        return Mutant(path.stem, path, lines["Title"], lines["Breaks"], lines["Judge"], seed, seconds)
    except KeyError as missing:
        raise Stale(f"{path.name}: the heading has no line {missing}") from None


def every() -> list[Mutant]:
    """Return all mutants, by name."""
    return [read(path) for path in sorted(FOLDER.glob("*.patch"))]


def files_of(mutant: Mutant) -> list[str]:
    """Return the files that a patch changes, from the repository's root."""
    lines = mutant.path.read_text("utf-8").splitlines()
    return [line.rpartition(" b/")[2] for line in lines if line.startswith(_DIFF)]


def planted(mutant: Mutant | None, place: Path) -> Path:
    """Copy the product's source into a folder, and apply a patch to it; return the folder for PYTHONPATH.

    Kernels are found in the existing cache, since a kernel's name depends on its source, not on the source's place.

    Raises:
        Stale: the patch does not apply.
    """
    source = place / "src"
    # With the byte code, which goes by the time and size of its source: only what is patched is compiled again.
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("node_modules", "*.map"))
    if mutant is not None:
        apply(mutant, place)
    return source


def apply(mutant: Mutant, place: Path) -> None:
    """Apply a patch to the copy in a folder. Raises Stale."""
    command = ["git", "apply", "--whitespace=nowarn", "-C1", str(mutant.path)]
    # A folder that lies within a repository would make git look for the files there.
    outside = os.environ | {"GIT_CEILING_DIRECTORIES": str(place.parent), "GIT_DIR": os.devnull}
    done = subprocess.run(command, cwd=place, env=outside, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Stale(f"{mutant.path.name} does not apply: {done.stderr.strip()}")
