"""A hook of hatchling's: what a wheel has beside the package's files, and which of these it does without.

With `HEADWATER_LIBRARY=FILE` and `HEADWATER_WHEEL_TAG=TAG` a wheel for one system, which has the kernels' machine code
(native/), and nothing of what numba's build needs; else one for all, which needs numba.

numba stands in pyproject.toml, and is taken out here: installers such as uv read that table and ask no hook.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "headwater/kernels/_machine.abi3.so"
SOURCES = Path(__file__).parent / "src" / "headwater"


class MachineCode(BuildHookInterface[Any]):
    """Puts the library into a wheel, and takes numba and what is for numba alone out of it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Say what this wheel has."""
        library, tag = os.environ.get("HEADWATER_LIBRARY"), os.environ.get("HEADWATER_WHEEL_TAG")
        if library and tag and version != "editable":
            build_data["force_include"][library] = LIBRARY
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{tag}"
            needed = self.metadata.core.dependencies
            needed[:] = [each for each in needed if not each.startswith("numba")]
            self.build_config.target_config["exclude"] = left_out()


def left_out() -> list[str]:
    """Return the modules that a wheel with machine code is without, as paths in the source."""
    kernels = runpy.run_path(str(SOURCES / "kernels" / "sources.py"))["NUMBAS"]
    return [*(f"/src/headwater/kernels/{name}.py" for name in kernels), "/src/headwater/node/process/machine_code.py"]
