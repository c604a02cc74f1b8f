"""The documentation is kept: generated pages are fresh, links lead somewhere, commands that pages name exist."""

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from headwater.cli.renamed import RENAMED

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "deploy").rglob("*file")])
GENERATORS = sorted((ROOT / "tools").glob("write_*.py"))
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")


def load(tool: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(tool.stem, tool)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("tool", GENERATORS, ids=named)
def test_a_generated_page_is_what_its_tool_writes_now(tool: Path) -> None:
    module = load(tool)
    assert module.PAGE.read_text("utf-8") == module.page(), f"stale: run `make docs` ({named(module.PAGE)})"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_to_files_that_exist(page: Path) -> None:
    lost = [link for link in LINK.findall(page.read_text("utf-8")) if not (page.parent / link).exists()]
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_recipes_that_pages_name_are_in_the_makefile(page: Path) -> None:
    recipes = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", page.read_text("utf-8"))) <= recipes


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_that_pages_name_exist(page: Path) -> None:
    known = set(re.findall(r"^## (.+)$", (ROOT / "docs/reference/cli.md").read_text("utf-8"), re.MULTILINE))
    told = re.findall(r"(?:^|[$`] ?)headwater ([a-z][a-z-]*)", page.read_text("utf-8"), re.MULTILINE)
    guests = {"gone"}  # of the package that docs/howto/own-job.md makes
    assert set(told) <= known | {"demo"} | guests


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_options_that_pages_name_exist(page: Path) -> None:
    option = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
    known = set(option.findall((ROOT / "docs/reference/cli.md").read_text("utf-8")))
    harness = {"--minutes", "--seed", "--seeds", "--operations", "--again", "--verbose", "--without", "--help"}
    harness |= {"--faults", "--target", "--times"}
    harness |= {"--master", "--deploy-mode", "--archives", "--conf", "--name", "--class"}  # of spark-submit
    harness |= {"--driver-memory", "--properties-file", "--load-spark-defaults"}
    harness |= {"--no-install-recommends", "--uid", "--home-dir", "--from", "--no-cache-dir"}  # of an image
    harness |= {"--clusterrole", "--serviceaccount"}  # of kubectl
    harness |= {"--upgrade", "--tmpfs", "--cap-drop", "--read-only", "--build-arg"}  # of pip and podman
    harness |= {"--from-literal", "--from-file", "--for", "--timeout"}  # of kubectl
    harness |= {
        "--wait",
        "--system",
        "--no-create-home",
        "--shell",
        "--quiet",
    }  # systemd-run, useradd; all commands of ours
    if page.name == "CHANGELOG.md":
        known |= {old for renamed in RENAMED.values() for old in renamed.values()}
    assert set(option.findall(page.read_text("utf-8"))) <= known | harness


@pytest.mark.parametrize("text", [*PAGES, *SOURCES], ids=named)
def test_nobody_is_told_to_install_by_a_name_that_no_index_has(text: Path) -> None:
    assert (
        re.findall(r"pip install [^\n`,]*?(?<![\w./-])headwater(?![\w-]).*|headwater\[.*", text.read_text("utf-8"))
        == []
    )


def test_every_page_stands_in_the_list() -> None:
    folder = ROOT / "docs"
    linked = {(folder / link).resolve() for link in LINK.findall((folder / "README.md").read_text("utf-8"))}
    told = [
        *folder.glob("*.md"),
        *folder.glob("howto/*.md"),
        *folder.glob("reference/*.md"),
        *folder.glob("*/README.md"),
    ]
    assert [named(page) for page in told if page.resolve() not in linked | {folder / "README.md"}] == []


def test_the_guide_to_installing_has_every_extra_and_the_wheel_of_this_version() -> None:
    page = (ROOT / "docs/howto/install.md").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = re.findall(r"^\| `([a-z0-9]+)`", page, re.MULTILINE)
    assert sorted(extras) == sorted(project["optional-dependencies"])
    pages = [page, (ROOT / "docs/howto/spark-cluster.md").read_text("utf-8")]
    assert {wheel for each in pages for wheel in re.findall(r"headwater-([\d.]+)-py3", each)} == {project["version"]}


def test_every_decision_stands_in_the_list() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = set(re.findall(r"\]\((\d{4}-[^)]+\.md)\)", (folder / "README.md").read_text("utf-8")))
    records = sorted(record.name for record in folder.glob("[0-9]*.md"))
    assert set(records) == listed
    assert len({name[:4] for name in records}) == len(records), "two decisions with one number"


def test_the_map_of_the_architecture_names_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    packages = [each.parent.name for each in (ROOT / "src" / "headwater").glob("*/__init__.py")]
    assert [package for package in packages if f"  {package}/" not in text] == []


def test_the_glossary_is_in_alphabetical_order() -> None:
    words = re.findall(r"^\| \*\*([^*]+)\*\*", (ROOT / "docs" / "glossary.md").read_text("utf-8"), re.MULTILINE)
    assert words == sorted(words, key=str.casefold)


def test_the_words_of_the_glossary_are_used_in_the_files_it_names() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    words = re.findall(r"^\| \*\*([^*]+)\*\*(.*)\|$", text, re.MULTILINE)
    places = [(word, place) for word, meaning in words for place in re.findall(r"`([\w/]+\.py)`", meaning)]
    assert places
    missing = []
    for word, place in places:
        path = ROOT / "src" / "headwater" / place
        source = path.read_text("utf-8").casefold() if path.exists() else ""
        if not re.search(rf"\b{re.escape(word.casefold()).replace('-', '-?')}s?\b", source.replace("_", " ")):
            missing.append(f"{word}: {place}")
    assert missing == []


def test_a_word_of_our_own_says_where_its_thing_is() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    assert [row for row in text.splitlines() if "(our word)" in row and ".py`" not in row] == []
