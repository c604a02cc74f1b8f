"""The site of docs/: write the generator's input, then build (`make docs-site`) or serve (`make docs-serve`).

On a code host the pages of docs/ link to files anywhere in the tree. On the site those files are pages as well, under
`project/`: Markdown as it is, any other text as a block of code, a folder as a list of its files. A folder in the
navigation stands for all its pages. The generator, Zensical, runs no code of ours: its input is written beforehand,
into a folder beside the site.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SETTINGS = ROOT / "mkdocs.yml"
NEWLINE = "\n"
BEGIN = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")
LANGUAGES = {".py": "python", ".go": "go", ".java": "java", ".json": "json", ".yml": "yaml", ".service": "ini"}
_LINK = re.compile(r"(\]\()(?!https?://|mailto:|#)([^)#\s]+)((?:#[^)\s]*)?\))")
_BRACKETS = re.compile(r"(`+[^`]+`+)|(?<![\]\\])\[(?=[^\]\[]*\](?![(\[:]))")
_FENCE = re.compile(r"(^```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)


def place(path: Path) -> str:
    """Return the path of a file of the tree among the site's sources."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    page = "project/" + path.relative_to(ROOT).as_posix()
    return page if page.endswith(".md") else page + ("/index.md" if path.is_dir() else ".md")


def text(path: Path) -> str:
    """Return a file of the tree as Markdown, with the links that it has on a code host."""
    if path.is_dir():
        shown = [each for each in path.iterdir() if not each.name.startswith((".", "__pycache__"))]
        names = sorted(each.name + "/" * each.is_dir() for each in shown)
        return f"# {path.relative_to(ROOT)}\n\n" + "".join(f"- [{name}]({path.name}/{name})\n" for name in names)
    content = path.read_text("utf-8")
    if path.suffix == ".md":
        return content
    fence = "`" * max([3, *(len(ticks) + 1 for ticks in re.findall(r"`+", content))])
    return f"# {path.relative_to(ROOT)}\n\n{fence}{LANGUAGES.get(path.suffix, '')}\n{content.rstrip()}\n{fence}\n"


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
    """Return Markdown with brackets that are no link escaped: `[noreply]` names no page. Indented lines are code."""
    lines = markdown.split("\n")
    return "\n".join(
        line if line.startswith("    ") else _BRACKETS.sub(lambda match: match[1] or "\\[", line) for line in lines
    )


def _folders(entry: Any) -> Any:
    """Return an entry of the navigation, with the pages of a folder in place of the folder."""
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


def navigation(settings: str) -> list[Any]:
    """Return the pages of the navigation from the settings' text: folders as their pages, and guides that it does not
    name at the end of the guides."""
    nav: list[Any] = _folders(yaml.safe_load(settings)["nav"])
    named = _named(nav)
    more = [f"howto/{page.name}" for page in sorted((DOCS / "howto").glob("*.md")) if f"howto/{page.name}" not in named]
    (guides,) = (each["How to"] for each in nav if "How to" in each)
    guides.extend(more)
    return nav


def settings() -> str:
    """Return the settings that the generator reads; it builds below them."""
    others, _, nav = SETTINGS.read_text("utf-8").partition("\nnav:\n")
    others = re.sub(r"(?m)^site_dir: .*$", "site_dir: site", others)
    others = others.replace("paths: [src]", f"paths: [{ROOT / 'src'}]")
    return f"{others}\n{yaml.safe_dump({'nav': navigation(f'nav:{NEWLINE}{nav}')}, sort_keys=False)}"


def stage(sources: Path) -> None:
    """Write the generator's input; unchanged files are left alone, and files without a source are removed."""
    pages = {sources / "mkdocs.yml": settings().encode()}
    for path in (path for path in DOCS.rglob("*") if path.is_file()):
        page = path.suffix == ".md"
        data = path.read_bytes()
        pages[sources / "docs" / place(path)] = rewritten(path, data.decode()).encode() if page else data
    for path, markdown in gathered().items():
        pages[sources / "docs" / place(path)] = rewritten(path, markdown).encode()
    for path in (path for path in (sources / "docs").rglob("*") if path.is_file() and path not in pages):
        path.unlink()
    for path, data in pages.items():
        if not path.exists() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def generator(*words: str, sources: Path) -> list[str]:
    """Return the command line of the generator."""
    return [str(Path(sys.executable).with_name("zensical")), *words, "--config-file", str(sources / "mkdocs.yml")]


def build(sources: Path, site: Path) -> int:
    """Build the site strictly: a warning is a failure. Return the exit status; the problems are printed to stderr."""
    stage(sources)
    words = generator("build", "--strict", "--clean", sources=sources)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    if done.returncode or "No issues found" not in output:
        print(output, file=sys.stderr)
        return done.returncode or 1
    shutil.rmtree(site, ignore_errors=True)
    shutil.move(sources / "site", site)
    return 0


def serve(sources: Path) -> None:
    """Show the site at http://127.0.0.1:8000; a saved page appears within a second or two."""
    stage(sources)
    with subprocess.Popen(generator("serve", sources=sources)) as served:
        while served.poll() is None:
            time.sleep(1)
            stage(sources)


def main() -> int:
    """Build or serve, by the arguments; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("build", "serve"))
    parser.add_argument("--to", type=Path, default=ROOT / "artifacts" / "site", help="the site's folder")
    given = parser.parse_args()
    site = given.to.resolve()
    sources = site.with_name(f"{site.name}-sources")
    if given.what == "serve":
        with suppress(KeyboardInterrupt):
            serve(sources)
        return 0
    return build(sources, site)


if __name__ == "__main__":
    sys.exit(main())
