"""The map of the packages is kept: imports point one way, a source file says its plan and ends in time.

The contracts stand in pyproject.toml ([tool.importlinter]); this runs them, and adds what that tool cannot say.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
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


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_each_source_file_opens_with_its_plan_and_ends_in_time(source: Path) -> None:
    text = source.read_text()
    assert ast.get_docstring(ast.parse(text)), "no docstring at its head"
    assert text.count("\n") <= LINES_MAX


@pytest.mark.parametrize("name", ["raise NotImplementedError", "TODO", "FIXME", "XXX"])
def test_nothing_is_left_for_later(name: str) -> None:
    left = [str(path.relative_to(ROOT)) for path in SOURCES if name in path.read_text()]
    assert left == []
