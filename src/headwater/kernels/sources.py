"""A hash of the kernels' sources, by which machine code made of other ones is told apart."""

from __future__ import annotations

import hashlib
from pathlib import Path

PACKAGE = Path(__file__).parent


def source_hash(folders: tuple[Path, ...] = (PACKAGE, PACKAGE.parent / "wire")) -> str:
    """Return sixteen hex digits that change with any byte of the kernels' sources."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.glob("*.py")):
        digest.update(f"{path.parent.name}/{path.name}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]
