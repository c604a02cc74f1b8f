"""The systems that libraries are built for, and the processors that each has code for."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A system.

    Attributes:
        name: as `zig cc -target` takes it.
        triple, layout: what LLVM calls the system, and how it lays out data.
        processors: LLVM's names, the least able one first; `machine.c` takes the last that is there.
        tag: of the wheel.
        links: what the linker is told beside.
    """

    name: str
    triple: str
    layout: str
    processors: tuple[str, ...]
    tag: str
    links: tuple[str, ...] = ()

    def is_of(self, machine: str) -> bool:
        """Return whether it has processors of such a kind, as `uname -m` calls it."""
        return self.name.startswith(_machine(machine))


_X86 = "e-m:{}-p270:32:32-p271:32:32-p272:64:64-i64:64-i128:128-f80:128-n8:16:32:64-S128"
_ARM = "e-m:{}-i64:64-i128:128-n32:64-S128-Fn32"
_ARM_LINUX = "e-m:e-i8:8:32-i16:16:32-i64:64-i128:128-n32:64-S128-Fn32"
_MAC = ("-undefined", "dynamic_lookup")

TARGETS = {
    target.name: target
    for target in (
        Target(
            "x86_64-linux-gnu.2.17",
            "x86_64-unknown-linux-gnu",
            _X86.format("e"),
            ("x86-64-v2", "x86-64-v3"),
            "manylinux_2_17_x86_64.manylinux2014_x86_64",
        ),
        Target(
            "aarch64-linux-gnu.2.17",
            "aarch64-unknown-linux-gnu",
            _ARM_LINUX,
            ("generic",),
            "manylinux_2_17_aarch64.manylinux2014_aarch64",
        ),
        Target(
            "aarch64-macos.11.0", "arm64-apple-macosx11.0.0", _ARM.format("o"), ("apple-m1",), "macosx_11_0_arm64", _MAC
        ),
        Target(
            "x86_64-macos.11.0",
            "x86_64-apple-macosx11.0.0",
            _X86.format("o"),
            ("x86-64-v2", "x86-64-v3"),
            "macosx_11_0_x86_64",
            _MAC,
        ),
    )
}


def _machine(name: str) -> str:
    return {"arm64": "aarch64", "AMD64": "x86_64"}.get(name, name)


def here() -> Target:
    """Return the target that this machine is.

    Raises:
        LookupError: there is none for it.
    """
    machine = _machine(platform.machine())
    system = {"linux": "linux-gnu", "darwin": "macos"}.get(sys.platform, sys.platform)
    for target in TARGETS.values():
        if target.name.startswith(f"{machine}-{system}."):
            return target
    raise LookupError(f"no target for {sys.platform} on {platform.machine()}: there are {', '.join(TARGETS)}")
