"""The map of the packages is kept: imports point one way, a source file says its plan, a function ends in time.

The contracts stand in pyproject.toml ([tool.importlinter]); this runs them, and adds what that tool cannot say.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "headwater"
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
LEFT_OUT = r"mark\.battery|import \bfew_of"
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "harness").rglob("*.py")])
PRODUCT = [source for source in SOURCES if source.is_relative_to(PACKAGE)]


def named(source: Path) -> str:
    """Return the path that a test names a source file by: headwater/... or harness/..."""
    return source.relative_to(ROOT).as_posix().removeprefix("src/")


class Trees(dict[Path, ast.Module]):
    """The syntax tree of a file; each is parsed once."""

    def __missing__(self, source: Path) -> ast.Module:
        tree = self[source] = ast.parse(source.read_text())
        return tree


@pytest.fixture(scope="module")
def trees() -> Trees:
    return Trees()


def documented(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield all that has a docstring, and that."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | FUNCTIONS) and (words := ast.get_docstring(node)):
            yield node, words


def test_no_docstring_has_half_of_a_surrogate_pair(trees: Trees) -> None:
    """Python 3.13 encodes docstrings in UTF-8 when it compiles: such a module can't be imported there."""
    halves = [
        f"{named(source)}: {words.splitlines()[0]}"
        for source in SOURCES
        for _, words in documented(trees[source])
        if any("\ud800" <= word <= "\udfff" for word in words)
    ]
    assert halves == []


def test_imports_point_back_up_the_map() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_that_make_test_leaves_out_is_run_by_another_recipe() -> None:
    recipes = re.findall(
        r"-m (?:battery|\"battery or not battery\"|interop) (.*)", (ROOT / "Makefile").read_text("utf-8")
    )
    folders = [ROOT / word for recipe in recipes for word in recipe.split() if word.startswith("tests/")]
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if re.search(LEFT_OUT, path.read_text("utf-8"))]
    assert len(marked) > 20
    assert [path for path in marked if not any(map(path.is_relative_to, folders))] == []


@pytest.mark.parametrize("package", ["headwater", "headwater.wire", "headwater.client"])
def test_a_light_import_brings_no_heavy_library(package: str) -> None:
    heavy = "{'pyspark', 'pandas', 'typer', 'rich', 'matplotlib'}"
    check = f"import sys, {package}; print(*sorted({heavy} & {{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.split() == []


def test_a_node_needs_no_arrow() -> None:
    check = "import sys, headwater.node.run; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=240, check=False).returncode == 0


def test_each_source_file_opens_with_its_plan(trees: Trees) -> None:
    assert [named(source) for source in SOURCES if not ast.get_docstring(trees[source])] == []


def test_each_source_file_with_a_function_has_a_test_file_of_its_name(trees: Trees) -> None:
    missing = []
    for source in SOURCES:
        mirrored = named(source).removeprefix("headwater/")
        if source.name.startswith("__") or "pyspark_headwater" in source.parts or not _has_functions(trees[source]):
            continue
        test = ROOT / "tests" / Path(mirrored).with_name(f"test_{source.name}")
        if not test.exists():
            missing.append(f"{mirrored}: no {test.relative_to(ROOT)}")
    assert missing == []


def _has_functions(tree: ast.Module) -> bool:
    """Declarations alone are tested by what they declare, all at once: tests/wire/test_vectors.py and the like."""
    return any(isinstance(node, FUNCTIONS) for node in ast.walk(tree))


def test_no_docstring_was_broken_in_the_middle_of_a_sentence(trees: Trees) -> None:
    """A rewrapper that does not know hanging indents leaves a word or two alone, and goes on deeper."""
    broken = []
    for source in SOURCES:
        for _, words in documented(trees[source]):
            for line, following in pairwise(words.split("\n")):
                goes_deeper = len(following) - len(following.lstrip()) > len(line) - len(line.lstrip())
                is_alone = 0 < len(line.split()) <= 2 and line.lstrip()[0].isalnum() and line[-1].isalnum()
                if line.startswith(" ") and is_alone and goes_deeper:
                    broken.append((named(source), line, following))
    assert broken == []


RIDDLES = frozenset({"What", "Whatever", "Whoever", "Nobody", "It", "They", "Themselves"})
"""Words that open a sentence whose subject is somewhere else."""


BESIDE = ("tests", "benchmarks", "examples", "tools")
DOCUMENTED = sorted([*SOURCES, *(path for folder in BESIDE for path in (ROOT / folder).rglob("*.py"))])


def test_a_docstring_has_a_subject_or_a_verb_and_begins_with_it(trees: Trees) -> None:
    """Functions say their effect ("Cancel the running handler; ..."), classes what they are ("The state of ...")."""
    told = []
    for source in DOCUMENTED:
        for node, docstring in documented(trees[source]):
            words = docstring.split()
            if words[0].rstrip(",.:;") in RIDDLES or (len(words) == 1 and isinstance(node, FUNCTIONS)):
                at = node.body[0].lineno  # type: ignore[attr-defined]
                told.append(f"{named(source)}, line {at}: {' '.join(words[:8])}")
    assert told == []


def test_the_words_below_a_constant_begin_with_their_subject_as_well(trees: Trees) -> None:
    told = []
    for source in DOCUMENTED:
        for node in ast.walk(trees[source]):
            body = getattr(node, "body", None)
            for above, below in pairwise(body if isinstance(body, list) else []):
                if not isinstance(above, ast.Assign | ast.AnnAssign) or not isinstance(below, ast.Expr):
                    continue
                words = str(getattr(below.value, "value", "")).split()
                if words and words[0].rstrip(",.:;") in (RIDDLES | QUESTIONS if source in PRODUCT else RIDDLES):
                    told.append(f"{named(source)}, line {below.lineno}: {' '.join(words[:8])}")
    assert told == []


GIVEN_AWAY = frozenset(
    {("errors.py", "told"), ("pipelines/jobs/invalidate.py", "asked"), ("pipelines/ledger_sink.py", "found")}
)
"""Names that stay though they say nothing: users read them, in errors, JSON, metrics and jobs of their own."""
NAMELESS = frozenset({"told", "asked", "made", "found", "one", "beside"})
"""Words that do not say what a variable holds: a message, request, result, position, line, error or answer does."""
PARTICIPLES = frozenset({"named", "told", "shown", "kept", "seen", "beside", "asked", "made", "found", "one"})
"""Words that need a noun behind them in the name of a function or of a private attribute, as in `_told`."""
_PRIVATE = frozenset(f"_{word}" for word in PARTICIPLES)
QUESTIONS = frozenset({"Whether", "Who", "Whose", "Whom", "Where", "Why", "When", "How", "Which"})
"""Words with which no docstring begins: `Return True if ...`, or the noun that is asked for, says the same."""


def _names_given(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the names in a file that say nothing of what they name, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in NAMELESS:
            yield node.id, node.lineno
        elif isinstance(node, ast.arg) and node.arg in NAMELESS:
            yield node.arg, node.lineno
        elif isinstance(node, FUNCTIONS) and node.name.lstrip("_") in PARTICIPLES:
            yield node.name, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in _PRIVATE:
            yield node.attr, node.lineno


def test_a_name_says_what_it_names(trees: Trees) -> None:
    nameless = [
        f"{named(source)}, line {line}: {name}"
        for source in PRODUCT
        for name, line in _names_given(trees[source])
        if (source.relative_to(PACKAGE).as_posix(), name) not in GIVEN_AWAY
    ]
    assert nameless == []


def test_a_docstring_begins_with_no_question(trees: Trees) -> None:
    questions = [
        f"{named(source)}: {words[:60]}"
        for source in PRODUCT
        for _, words in documented(trees[source])
        if words.split()[0] in QUESTIONS
    ]
    assert questions == []


def test_a_public_function_takes_a_vbucket_and_not_a_vb(trees: Trees) -> None:
    short = []
    for source in SOURCES:
        nodes = ast.walk(trees[source]) if "kernels" not in source.parts and "src" in source.parts else ()
        for node in nodes:
            if isinstance(node, FUNCTIONS) and not node.name.startswith("_"):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                short += [f"{named(source)}: {node.name}" for each in given if each.arg == "vb"]
    assert short == []


FAMILIES = frozenset(f"wire/{family}.py" for family in ("admin", "bootstrap", "dcp", "documents", "tap", "upr"))
"""Messages carry the names of the specification, so one family's is found again in another: `dcp.Mutation`,
`upr.Mutation`, `tap.Mutation`. Events of the client carry those of DCP's messages."""


def test_no_two_public_classes_share_a_name(trees: Trees) -> None:
    places: dict[str, list[str]] = {}
    for source in PACKAGE.rglob("*.py"):
        path = source.relative_to(PACKAGE).as_posix()
        if path in FAMILIES or path.startswith("testing/"):
            continue
        for node in trees[source].body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(path)
    assert {name: sorted(found) for name, found in places.items() if len(found) > 1} == {}


FUNCTION_LINES_MAX = 50


def test_no_function_but_a_kernel_is_longer_than_a_page(trees: Trees) -> None:
    long = []
    for source in SOURCES:
        for node in ast.walk(trees[source]):
            if isinstance(node, FUNCTIONS) and node.end_lineno is not None:
                is_kernel = any("kernel" in ast.unparse(each) for each in node.decorator_list)
                has_words = isinstance(node.body[0], ast.Expr) and ast.get_docstring(node) is not None
                words = (node.body[0].end_lineno or 0) - node.body[0].lineno + 1 if has_words else 0
                lines = node.end_lineno - node.lineno + 1 - words
                if lines > FUNCTION_LINES_MAX and not is_kernel:
                    long.append(f"{source.relative_to(ROOT)}: {node.name} has {lines} lines")
    assert long == []


def test_a_task_that_is_cancelled_ends() -> None:
    """In Python 3.11 `asyncio.wait_for` swallows a cancellation that comes in the turn in which what it waits for is
    done; `asyncio.timeout` does not."""
    assert [named(source) for source in SOURCES if "asyncio.wait_for(" in source.read_text()] == []


@pytest.mark.parametrize("name", ["raise NotImplementedError", "TODO", "FIXME", "XXX"])
def test_nothing_is_left_for_later(name: str) -> None:
    left = [str(path.relative_to(ROOT)) for path in SOURCES if name in path.read_text()]
    assert left == []


def test_every_dependency_has_the_version_it_is_tested_with() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    names = {_canonical(re.split(r"[<>=!~;\[ ]", each)[0]) for each in asked} - {"headwater"}
    pinned = re.findall(r"^([^#=\s]+)==\S+$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    assert names - {_canonical(name) for name in pinned} == set()


def test_installers_that_read_pyproject_and_build_nothing_know_what_compiles_the_kernels() -> None:
    """uv takes static dependencies for all there are. A wheel with machine code leaves numba out (hatch_build.py)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert [each for each in project["dependencies"] if each.startswith("numba")]


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-")


OWN_FORMATS = {
    "node/storage/batch.py": "a batch of the log",
    "node/storage/log.py": "a salt",
    "node/storage/records.py": "the frames that only the log has",
    "node/storage/segment.py": "a segment's header",
    "node/storage/store.py": "a key for hashing, numbers for a kernel",
    "node/storage/synced.py": "the note beside the log",
    "node/kv/subdoc/attributes.py": "the text of a macro",
    "node/buckets/bucket.py": "keys as a kernel hands them over",
    "kernels/batches.py": "Arrow",
    "kernels/intrinsics.py": "numbers in memory",
    "kernels/tracker.py": "rows in memory",
    "lake/iceberg/publish.py": "bounds of columns in Iceberg's manifests",
    "lake/iceberg/puffin.py": "Iceberg's files of deletion vectors",
    "lake/index.py": "the index beside a file",
    "lake/variant.py": "the encoding of VARIANT",
    "lake/vectors.py": "Delta's deletion vectors",
    "pipelines/checkpoint.py": "the sums that Hadoop keeps beside a file",
    "spark/keyfile.py": "a file of delivered keys",
}
"""Where bytes are taken apart by hand, and what they are: nothing that goes over the wire."""


def test_bytes_of_the_wire_are_declared_in_wire_and_taken_apart_nowhere_else() -> None:
    by_hand = re.compile(r"\bStruct\(|int\.from_bytes\(|\.to_bytes\([^)]|\bstruct\.(un)?pack")
    sources = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")}
    found = {name for name, text in sources.items() if not name.startswith("wire/") and by_hand.search(text)}
    assert found == OWN_FORMATS.keys()
