"""A hash of the kernels' sources, by which machine code of other sources is recognised.

The modules that only numba's build needs (NUMBAS) are not hashed: a wheel with machine code lacks them
(hatch_build.py), and jit.py counts them as part of the compiler.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

PACKAGE = Path(__file__).parent
NUMBAS: Final = ("cached", "instructions", "jit", "warming")
"""The modules of this package that only numba's build needs."""


def source_hash(folders: tuple[Path, ...] = (PACKAGE, PACKAGE.parent / "wire")) -> str:
    """Return sixteen hex digits that change with any byte of the kernels' sources."""
    paths = sorted(path for folder in folders for path in folder.glob("*.py"))
    return hash_of(path for path in paths if path.parent != PACKAGE or path.stem not in NUMBAS)


def hash_of(paths: Iterable[Path]) -> str:
    """Return sixteen hex digits that change with any byte of these files."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.parent.name}/{path.name}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
