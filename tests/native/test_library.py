"""The library: what it takes and refuses, and that a kernel in it does what numba's does.

It is built of three modules here; all kernels at once are tried by `make faults`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.kernels import machine, scan, values
from native import library
from native.targets import TARGETS, Target, here

ROOT = Path(__file__).parents[2]
HAS_COMPILER = find_spec("ziglang") is not None or shutil.which("cc") is not None
HAS_HEADERS = Path(sysconfig.get_path("include"), "Python.h").exists()
pytestmark = pytest.mark.skipif(not (HAS_COMPILER and HAS_HEADERS), reason="neither ziglang nor cc, or no Python.h")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library for the least able processor, of two modules."""
    whole = here()
    out = tmp_path_factory.mktemp("native") / "_machine.abi3.so"
    target = Target(whole.name, whole.triple, whole.layout, whole.processors[:1], whole.tag, whole.links)
    library.build(target, out, ["scan", "values", "crc"])
    return out


@pytest.fixture(scope="module")
def functions(built: Path) -> machine.Kernels:
    """Its kernels."""
    found: machine.Kernels = machine._load(built).KERNELS
    return found


def frames(*bodies: int) -> bytes:
    return b"".join(b"\x80" + bytes(7) + size.to_bytes(4, "big") + bytes(12 + size) for size in bodies)


@given(st.binary(max_size=200) | st.lists(st.integers(0, 60), max_size=6).map(lambda sizes: frames(*sizes)))
def test_a_kernel_of_the_library_does_what_numbas_does(functions: machine.Kernels, data: bytes) -> None:
    view = np.frombuffer(data, np.uint8)
    results = []
    for function in (functions["scan.scan_frames"], scan.scan_frames):
        offsets, result = np.zeros(8, np.int64), np.zeros(3, np.int64)
        count = function(view.ctypes.data, len(view), offsets, result)
        results.append((int(count), offsets.tolist(), result.tolist()))
    assert results[0] == results[1]
    readable = functions["values.readable"]
    for datatype in range(8):
        assert readable(view, datatype) is bool(values.readable(np.array(view), datatype))


def test_numbers_of_python_and_of_numpy_are_taken_as_64_bits(functions: machine.Kernels) -> None:
    function = functions["scan.scan_frames"]
    offsets, result = np.zeros(1, np.int64), np.zeros(3, np.int64)
    data = np.frombuffer(frames(3), np.uint8)
    for address in (data.ctypes.data, np.uint64(data.ctypes.data), data.ctypes.data - (1 << 64)):
        assert function(address, np.int64(len(data)), offsets, result) == 1


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        (np.zeros(4, np.int32), "a int32"),
        (np.zeros((2, 2), np.int64), "a int64"),
        (np.zeros(8, np.int64)[::2], "a int64"),
        (np.frombuffer(bytes(16), np.int64), "a int64"),
        (np.zeros(17, np.uint8)[1:].view(np.int64), "a int64"),
        ([1, 2], "a <class 'list'>"),
        (None, "a <class 'NoneType'>"),
    ],
)
def test_other_arrays_are_refused_before_memory_is_touched(
    functions: machine.Kernels, offsets: object, said: str
) -> None:
    wanted = r"^scan\.scan_frames takes a writable C-contiguous int64 array of 1 dimension\(s\) here, not "
    with pytest.raises(TypeError, match=wanted + said):
        functions["scan.scan_frames"](0, 0, offsets, np.zeros(3, np.int64))


def test_fewer_and_more_arguments_are_refused(functions: machine.Kernels) -> None:
    row = np.zeros(3, np.int64)
    with pytest.raises(TypeError, match="takes more arguments than 3"):
        functions["scan.scan_frames"](0, 0, row)
    with pytest.raises(TypeError, match="takes fewer arguments than 5"):
        functions["scan.scan_frames"](0, 0, row, row, row)


def test_a_number_that_is_none_is_refused(functions: machine.Kernels) -> None:
    with pytest.raises(TypeError, match="'str' object cannot be interpreted as an integer"):
        functions["scan.scan_frames"]("0", 0, np.zeros(3, np.int64), np.zeros(3, np.int64))


def test_a_process_with_a_library_of_these_sources_never_imports_numba(built: Path) -> None:
    code = (
        "import sys; from headwater.kernels import scan; print(scan.scan(bytes(30)).stop.name, 'numba' in sys.modules)"
    )
    assert python(code, HEADWATER_MACHINE_CODE=str(built)) == ["BAD_MAGIC", "False"]


def test_a_library_of_other_sources_is_refused_by_name(built: Path) -> None:
    code = "from headwater.kernels import machine; machine.source_hash = lambda: 'other'; machine.functions()"
    with pytest.raises(subprocess.CalledProcessError) as failed:
        python(code, HEADWATER_MACHINE_CODE=str(built))
    assert "_machine.abi3.so was made of other sources" in failed.value.stderr


def test_every_target_has_a_tag_and_a_layout_of_its_own() -> None:
    assert len({target.tag for target in TARGETS.values()}) == len(TARGETS)
    assert here().name in TARGETS


MAGIC = {"linux": b"\x7fELF\x02", "macos": b"\xcf\xfa\xed\xfe"}
MACHINE = {"linux": {"x86_64": (18, 62), "aarch64": (18, 183)}, "macos": {"x86_64": (4, 7), "aarch64": (4, 12)}}
"""Where the header of a library has the number of its machine, and that."""


@pytest.mark.battery
@pytest.mark.skipif(find_spec("ziglang") is None, reason="ziglang is not installed: pip install ziglang")
@pytest.mark.parametrize("name", TARGETS)
def test_a_library_for_another_system_is_built_here(name: str, tmp_path: Path) -> None:
    library.build(TARGETS[name], tmp_path / "_machine.abi3.so", ["scan"])
    machine_name, _, rest = name.partition("-")
    system = rest.partition("-" if "linux" in rest else ".")[0]
    data = (tmp_path / "_machine.abi3.so").read_bytes()
    place, number = MACHINE[system][machine_name]
    assert data.startswith(MAGIC[system])
    assert data[place] == number
    assert b"scan.scan_frames" in data


@pytest.mark.battery
def test_all_kernels_pass_their_tests_without_numba(tmp_path: Path) -> None:
    """Those which compile kernels of their own, or ask numba, are left out."""
    out = tmp_path / "_machine.abi3.so"
    library.build(here(), out)
    names = (
        "test_jit",
        "test_cached",
        "test_warming",
        "test_copying",
        "test_instructions",
        "test_intrinsics",
        "test_choices",
        "test_index",
    )
    left_out = [f"--ignore=tests/kernels/{name}.py" for name in names]
    left_out += [
        "--deselect",
        "tests/kernels/test_columns.py::test_whatever_memory_is_read_the_kernel_is_the_one_that_was_warmed",
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/kernels", *left_out]
    environment = os.environ | {"HEADWATER_MACHINE_CODE": str(out)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


def python(code: str, **environment: str) -> list[str]:
    """Run code in a process of its own; the words it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    return done.stdout.split()
