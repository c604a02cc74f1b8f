"""The Python that mkdocs.yml needs: pages from outside of docs/, links to them, and folders in the navigation.

On a code host the pages of docs/ link to files anywhere in the tree. On the site those files are pages as well, under
`project/`: Markdown as it is, any other text as a block of code, a folder as a list of its files.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
BEGIN = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")
LANGUAGES = {".py": "python", ".go": "go", ".java": "java", ".json": "json", ".yml": "yaml", ".service": "ini"}
_LINK = re.compile(r"(\]\()(?!https?://|mailto:|#)([^)#\s]+)((?:#[^)\s]*)?\))")
_BRACKETS = re.compile(r"(`+[^`]+`+)|(?<![\]\\])\[(?=[^\]\[]*\](?![(\[:]))")
_FENCE = re.compile(r"(^```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)


def place(path: Path) -> str:
    """Return where a file of the tree stands among the site's sources."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    told = "project/" + path.relative_to(ROOT).as_posix()
    return told if told.endswith(".md") else told + ("/index.md" if path.is_dir() else ".md")


def text(path: Path) -> str:
    """Return a file of the tree as Markdown, with the links that it has on a code host."""
    if path.is_dir():
        shown = [each for each in path.iterdir() if not each.name.startswith((".", "__pycache__"))]
        names = sorted(each.name + "/" * each.is_dir() for each in shown)
        return f"# {path.relative_to(ROOT)}\n\n" + "".join(f"- [{name}]({path.name}/{name})\n" for name in names)
    told = path.read_text("utf-8")
    if path.suffix == ".md":
        return told
    fence = "`" * max([3, *(len(ticks) + 1 for ticks in re.findall(r"`+", told))])
    return f"# {path.relative_to(ROOT)}\n\n{fence}{LANGUAGES.get(path.suffix, '')}\n{told.rstrip()}\n{fence}\n"


def outside(path: Path, markdown: str) -> list[Path]:
    """Return the files outside of docs/ that a page links to."""
    found = [(path.parent / link[1]).resolve() for link in _LINK.findall(_FENCE.sub("", markdown))]
    return [each for each in found if each.exists() and not each.is_relative_to(DOCS)]


def gathered() -> dict[Path, str]:
    """Return all files outside of docs/ that pages link to, and those that these link to, each as Markdown."""
    pages: dict[Path, str] = {}
    waiting = [ROOT / name for name in BEGIN]
    for page in sorted(DOCS.rglob("*.md")):
        waiting += outside(page, page.read_text("utf-8"))
    while waiting:
        path = waiting.pop()
        if path not in pages:
            pages[path] = text(path)
            waiting += outside(path, pages[path]) if path.is_dir() or path.suffix == ".md" else []
    return pages


def rewritten(path: Path, markdown: str) -> str:
    """Return a page with its links as the site has them."""
    here = posixpath.dirname(place(path))

    def link(match: re.Match[str]) -> str:
        there = (path.parent / match[2]).resolve()
        if not there.exists():  # strict mode finds it
            return match[0]
        if there.is_dir() and there.is_relative_to(DOCS):
            there /= "README.md"
        return match[1] + posixpath.relpath(place(there), here or ".") + match[3]

    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _plain(_LINK.sub(link, part)) for part in parts)


def _plain(markdown: str) -> str:
    """Let brackets that are no link be brackets: `[noreply]` names no page. Indented lines are code."""
    lines = markdown.split("\n")
    return "\n".join(
        line if line.startswith("    ") else _BRACKETS.sub(lambda match: match[1] or "\\[", line) for line in lines
    )


def _folders(entry: Any) -> Any:
    """Return an entry of the navigation, with the pages of a folder where a folder stands."""
    if isinstance(entry, list):
        return [_folders(each) for each in entry]
    if isinstance(entry, dict):
        return {name: _folders(each) for name, each in entry.items()}
    if not entry.endswith("/"):
        return entry
    pages = sorted((DOCS / entry).glob("*.md"), key=lambda page: (page.name != "README.md", page.name))
    return [entry + page.name for page in pages]


def _named(entry: Any) -> set[str]:
    """Return the pages that an entry of the navigation names."""
    if isinstance(entry, str):
        return {entry}
    return set().union(*map(_named, entry.values() if isinstance(entry, dict) else entry))


def on_config(config: MkDocsConfig) -> None:
    """Replace folders in the navigation, and put pages that it does not name yet at the end of the guides."""
    config.nav = _folders(config.nav)
    named = _named(config.nav)
    more = [f"howto/{page.name}" for page in sorted((DOCS / "howto").glob("*.md")) if f"howto/{page.name}" not in named]
    (guides,) = (each["How to"] for each in config.nav if "How to" in each)
    guides.extend(more)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside of docs/."""
    for path, markdown in gathered().items():
        files.append(File.generated(config, place(path), content=rewritten(path, markdown)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links out of docs/ to the site's own pages."""
    if page.file.generated_by is not None:
        return markdown
    return rewritten(DOCS / page.file.src_uri, markdown)
