"""The map of the packages is kept: imports point one way, a source file says its plan and ends in time.

The contracts stand in pyproject.toml ([tool.importlinter]); this runs them, and adds what that tool cannot say.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "headwater"
SOURCES = sorted((ROOT / "src").rglob("*.py"))
LINES_MAX = 400


def test_imports_point_back_up_the_map() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("package", ["headwater", "headwater.wire", "headwater.client"])
def test_a_light_import_brings_no_heavy_library(package: str) -> None:
    heavy = "{'pyspark', 'pandas', 'typer', 'rich', 'matplotlib'}"
    check = f"import sys, {package}; print(*sorted({heavy} & {{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


def test_a_node_needs_no_arrow() -> None:
    check = "import sys, headwater.node.run; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_each_source_file_opens_with_its_plan_and_ends_in_time(source: Path) -> None:
    text = source.read_text()
    assert ast.get_docstring(ast.parse(text)), "no docstring at its head"
    assert text.count("\n") <= LINES_MAX


def test_each_source_file_with_a_function_has_a_test_file_of_its_name() -> None:
    missing = []
    for source in SOURCES:
        name = (
            source.relative_to(ROOT / "src" / "headwater")
            if source.is_relative_to(ROOT / "src" / "headwater")
            else None
        )
        if name is None or name.name.startswith("__") or not _has_functions(source):
            continue
        test = ROOT / "tests" / name.with_name(f"test_{name.name}")
        if not test.exists():
            missing.append(f"{name}: no {test.relative_to(ROOT)}")
    assert missing == []


def _has_functions(source: Path) -> bool:
    """Declarations alone are tested by what they declare, all at once: tests/wire/test_vectors.py and the like."""
    nodes = ast.walk(ast.parse(source.read_text()))
    return any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes)


FUNCTION_LINES_MAX = 50


def test_no_function_but_a_kernel_is_longer_than_a_page() -> None:
    long = []
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                is_kernel = any("kernel" in ast.unparse(each) for each in node.decorator_list)
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES_MAX and not is_kernel:
                    long.append(f"{source.relative_to(ROOT)}: {node.name} has {lines} lines")
    assert long == []


@pytest.mark.parametrize("name", ["raise NotImplementedError", "TODO", "FIXME", "XXX"])
def test_nothing_is_left_for_later(name: str) -> None:
    left = [str(path.relative_to(ROOT)) for path in SOURCES if name in path.read_text()]
    assert left == []
