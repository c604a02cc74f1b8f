"""From LLVM's code of each processor to one library: object code, a table of the kernels, and machine.c, linked."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import llvmlite.binding as llvm

from headwater.kernels import jit
from native.targets import Target, here

HERE = Path(__file__).parent
_CHOICES = {
    "x86-64-v2": "has_level_2()",
    "x86-64-v3": "has_level_3()",
}
"""The test in processor.h for each kind of processor; other kinds are present wherever the library loads."""


class NoCompiler(Exception):  # noqa: N818 - says what is missing
    """There is nothing to compile C with."""


def build(target: Target, out: Path, modules: Sequence[str] = ()) -> None:
    """Compile all kernels, or those of some modules, and write the library.

    Raises:
        NoCompiler: neither ziglang nor, for this machine's own system, cc is there.
        subprocess.CalledProcessError: a tool failed; it has said why.
    """
    compiler = _compiler(target)
    with tempfile.TemporaryDirectory(prefix="headwater-native-") as name:
        folder = Path(name)
        with ThreadPoolExecutor(len(target.processors)) as threads:
            list(threads.map(lambda processor: _compile(processor, target, folder, modules), target.processors))
        objects = [_object(target, processor, folder) for processor in target.processors]
        table = folder / "table.c"
        table.write_text(_table(json.loads((folder / "signatures.json").read_text()), target.processors))
        out.parent.mkdir(parents=True, exist_ok=True)
        _link(compiler, target, [*objects, table], folder / out.name)
        shutil.copy(folder / out.name, out)


def _compile(processor: str, target: Target, folder: Path, modules: Sequence[str]) -> None:
    """Run variant.py, which compiles as for that processor whichever runs it; numba knows this machine's kind alone."""
    name = processor if target.is_of(os.uname().machine) else "generic"
    # NUMBA_CPU_FEATURES: none but those that the name stands for. A cache of its own: these are not this machine's.
    mine = {
        "NUMBA_CPU_NAME": name,
        "NUMBA_CPU_FEATURES": "",
        "HEADWATER_CACHE": str(folder / f"cache-{processor}"),
    }
    mine |= {"HEADWATER_MACHINE_CODE": "no", "HEADWATER_DEBUG_KERNELS": ""}
    command = [sys.executable, "-m", "native.variant", processor, str(folder), *modules]
    subprocess.run(command, check=True, env=os.environ | mine, cwd=HERE.parent)


def _object(target: Target, processor: str, folder: Path) -> Path:
    """Write a processor's object code, which may lie anywhere in memory."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly((folder / f"{processor}.ll").read_text())
    module.triple, module.data_layout = target.triple, target.layout
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=processor, opt=3, reloc="pic", codemodel="small"
    )
    path = folder / f"{processor}.o"
    path.write_bytes(machine.emit_object(module))
    return path


def _table(listed: Sequence[tuple[str, str]], processors: Sequence[str]) -> str:
    """Return the C source of what machine.c wants to know."""
    names = [processor.replace("-", "_") for processor in processors]
    lines = ["#include <stdint.h>", '#include "processor.h"', "typedef int (*trampoline)(void **, void **, int64_t *);"]
    lines += [f"int kernel_{at}_{name}(void **, void **, int64_t *);" for at in range(len(listed)) for name in names]
    lines += ["struct kernel { const char *name; const char *code; trampoline by_processor[4]; };"]
    lines += ["const struct kernel KERNELS[] = {"]
    for at, (name, code) in enumerate(listed):
        functions = ", ".join(f"kernel_{at}_{each}" for each in names)
        lines += [f'    {{"{name}", "{code}", {{{functions}}}}},']
    lines += ["    {0, 0, {0}}};", f'const char SOURCES[] = "{jit.source_hash()}";', "int best_processor(void) {"]
    for at, processor in reversed(list(enumerate(processors))):
        lines += [f"    if ({_CHOICES.get(processor, '1')})", f"        return {at};"]
    return "\n".join([*lines, "    return -1;", "}", ""])


def _compiler(target: Target) -> list[str]:
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc", "-target", target.name]
    if target.name == here().name and (found := shutil.which("cc")):
        return [found]
    raise NoCompiler(f"no compiler for {target.name}: pip install ziglang")


def _link(compiler: list[str], target: Target, parts: Sequence[Path], out: Path) -> None:
    options = ["-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-g0", "-s", *target.links]
    includes = [f"-I{sysconfig.get_path('include')}", f"-I{HERE}"]
    sources = [str(HERE / "machine.c"), *map(str, parts)]
    subprocess.run([*compiler, *options, *includes, *sources, "-o", str(out)], check=True)
