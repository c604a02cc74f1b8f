"""The command: `python -m native OUT`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from native.library import NoCompiler, build
from native.targets import TARGETS, here


def main() -> int:
    """Read the arguments and build."""
    parser = argparse.ArgumentParser(prog="python -m native", description="Compile the kernels into one library.")
    parser.add_argument("out", type=Path, help="the library, as build/_machine.abi3.so")
    parser.add_argument("--target", choices=list(TARGETS), help="another system than this machine's")
    arguments = parser.parse_args()
    try:
        build(TARGETS[arguments.target] if arguments.target else here(), arguments.out)
    except (LookupError, NoCompiler) as error:
        print(f"native: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"native: {error.cmd[0]} ended with status {error.returncode}", file=sys.stderr)
        return 1
    print(f"{arguments.out}: {arguments.out.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
