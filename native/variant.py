"""Compiles all kernels for one processor: `python -m native.variant PROCESSOR FOLDER` writes LLVM's code and a list.

A process of its own, since numba reads the processor's name once. Nothing here depends on the system: what a kernel
does to memory is the same on each, and the object code is made later (library.py).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from headwater import kernels
from headwater.kernels import jit
from native.trampolines import Signature, compiled, signatures_of

_COUNTS = re.compile(r"^define [^\n]*@(NRT_incref|NRT_decref)\([^\n]*\{\n.*?^\}", re.MULTILINE | re.DOTALL)


def _module(found: Any, name: str) -> Any:
    """Return the code of a trampoline, with all that it calls, under a name; what else is in it can't be seen outside.

    An array made of an address belongs to nobody: what would count its owners has nothing to do.
    """
    text = str(found.library._final_module).replace(found.fndesc.llvm_func_name, name)
    text = _COUNTS.sub(lambda hit: f"define internal void @{hit[1]}(ptr %0) alwaysinline {{\n  ret void\n}}", text)
    module = llvm.parse_assembly(text)
    for each in (*module.functions, *module.global_variables):
        if not each.is_declaration and each.name != name:
            each.linkage = "internal"
    return module


def _optimized(module: Any) -> Any:
    """Inline what is called, and drop what is not."""
    machine = llvm.Target.from_default_triple().create_target_machine(cpu=os.environ["NUMBA_CPU_NAME"], opt=3)
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    return module


def _build(modules: Collection[str]) -> None:
    """Let numba compile the kernels of these modules; of all if none is named."""
    if not modules:
        kernels.warm()
    for name in modules:
        importlib.import_module(f"headwater.kernels.{name}").warm_up()


def write(processor: str, folder: Path, modules: Collection[str] = ()) -> None:
    """Write `PROCESSOR.ll` and `signatures.json` into a folder."""
    _build(modules)
    listed: list[Signature] = []
    whole = llvm.parse_assembly("")
    for at, (one, kernel) in enumerate(signatures_of(jit.built_kernels())):
        found = compiled(one, kernel)
        module = _optimized(_module(found, f"kernel_{at}_{processor.replace('-', '_')}"))
        whole.link_in(module)
        listed.append(one)
    (folder / f"{processor}.ll").write_text(str(whole))
    (folder / "signatures.json").write_text(json.dumps([[each.name, each.code] for each in listed]))


def main() -> int:
    """Read the arguments."""
    parser = argparse.ArgumentParser(prog="python -m native.variant", description=__doc__)
    parser.add_argument("processor")
    parser.add_argument("folder", type=Path)
    parser.add_argument("modules", nargs="*", help="those of headwater.kernels; all")
    arguments = parser.parse_args()
    write(arguments.processor, arguments.folder, arguments.modules)
    return 0


if __name__ == "__main__":
    sys.exit(main())
