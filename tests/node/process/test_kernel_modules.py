"""A node counts its kernels, and with machine code needs nothing of what compiles them."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from headwater.node.process import kernel_modules

ROOT = Path(__file__).parents[3]


@pytest.fixture
def left_out(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that a wheel with machine code is without, as the hook of its build says; hatchling is not here."""
    names = ["hatchling", "hatchling.builders", "hatchling.builders.hooks", "hatchling.builders.hooks.plugin"]
    for name in (*names, f"{names[-1]}.interface"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[f"{names[-1]}.interface"].BuildHookInterface = dict  # type: ignore[attr-defined]
    found: list[str] = runpy.run_path(str(ROOT / "hatch_build.py"))["left_out"]()
    return found


def test_a_node_is_imported_whole_without_what_a_wheel_leaves_out(left_out: list[str]) -> None:
    """The checked build stands for machine code here: both are there without numba."""
    paths = [ROOT / name.removeprefix("/") for name in left_out]
    assert all(path.exists() for path in paths)
    names = [".".join(path.relative_to(ROOT / "src").with_suffix("").parts) for path in paths]
    code = (
        f"import sys; sys.modules |= dict.fromkeys({[*names, 'numba', 'llvmlite']!r})\n"
        "import headwater.node.run, headwater.node.rest.metrics, headwater.client, headwater.kernels\n"
        "from headwater.node.process import kernel_modules as kernels\n"
        "headwater.kernels.warm()\n"
        "for name in kernels.MODULES: kernels.warm_up(name)\n"
        "print(headwater.node.run._compiled_meanwhile(), *kernels.counts())"
    )
    environment = os.environ | {"HEADWATER_DEBUG_KERNELS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout.split() == ["None", "0", "0"], done.stderr


def test_kernels_that_were_loaded_are_counted() -> None:
    kernel_modules.warm_up("json")
    done, of = kernel_modules.counts()
    assert 0 < done <= of
    assert kernel_modules.MODULES[: len(kernel_modules.FIRST)] == kernel_modules.FIRST
