"""Which build of the kernels a process has, and the checked one beside another."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from headwater import kernels
from headwater.kernels import builds, guard, scan
from tests.kernels.test_jit import python


def test_the_debug_variable_makes_every_kernel_a_checked_function() -> None:
    code = (
        "import sys; from headwater.kernels import builds, scan; "
        "print(builds.debugging(), 'numba' not in sys.modules, scan.scan(bytes(30)).stop.name)"
    )
    assert python(code, HEADWATER_DEBUG_KERNELS="1") == ["True", "True", "BAD_MAGIC"]


def test_a_debug_copy_leaves_the_compiled_modules_in_place() -> None:
    before = {name: module for name, module in sys.modules.items() if name.startswith("headwater.kernels")}
    copy = builds.debug_copy("headwater.kernels.scan")
    after = {name: module for name, module in sys.modules.items() if name.startswith("headwater.kernels")}
    assert before == after
    assert kernels.scan is scan
    assert copy is not scan
    assert not hasattr(copy.scan_frames, "signatures")
    assert not builds.debugging()


def test_only_kernel_modules_have_a_debug_copy() -> None:
    with pytest.raises(ValueError, match="not a kernel module"):
        builds.debug_copy("headwater.errors")


def test_a_checked_kernel_reaches_its_arguments_and_nothing_else() -> None:
    copy = builds.debug_copy("headwater.kernels.scan")
    held = guard.registered_bytes()
    data, offsets, result = np.zeros(24, np.uint8), np.zeros(4, np.int64), np.zeros(3, np.int64)
    with pytest.raises(guard.KernelFault) as fault:
        copy.scan_frames(data.ctypes.data, len(data), offsets, result)
    assert (fault.value.bytes, fault.value.access) == (4, "load")
    assert data.ctypes.data <= fault.value.address < data.ctypes.data + 24
    with guard.registered(data):
        copy.scan_frames(data.ctypes.data, len(data), offsets, result)
    assert result[scan.STOP] == scan.Stop.BAD_MAGIC
    assert guard.registered_bytes() == held


def test_importing_the_package_alone_imports_no_numba() -> None:
    assert python("import sys, headwater.kernels; print('numba' in sys.modules)") == ["False"]


def test_where_there_is_neither_machine_code_nor_numba_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['numba'] = None; from headwater.kernels import scan"
    with pytest.raises(subprocess.CalledProcessError) as failed:
        python(code, HEADWATER_MACHINE_CODE="no")
    assert "pip install numba, or a wheel of headwater for this machine" in failed.value.stderr


def test_a_wheel_that_was_made_to_do_without_numba_names_the_one_for_all_systems() -> None:
    code = (
        "import sys; sys.modules |= {f'headwater.kernels.{name}': None for name in ('instructions', 'jit')}; "
        "from headwater.kernels import scan"
    )
    with pytest.raises(subprocess.CalledProcessError) as failed:
        python(code, HEADWATER_MACHINE_CODE="no")
    assert "pip install the wheel of headwater for all systems, which needs numba" in failed.value.stderr
