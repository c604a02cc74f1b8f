"""The site of docs/ is whole: strict, every link and anchor leads somewhere, and nothing on it comes from elsewhere."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import headwater.client

pytest.importorskip("zensical", reason="zensical is not installed: the extra `docs`")
pytestmark = pytest.mark.slow  # it begins early: nothing may be left to one worker at the end
ROOT = Path(__file__).parent.parent
ELSEWHERE = re.compile(r"^(?:https?:)?//")
LOADS = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src")}
STYLES = {"stylesheet", "preload", "preconnect", "icon", "modulepreload", "dns-prefetch"}


class Looked(HTMLParser):
    """A page: the files it loads, its links, and the anchors that it has."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        self.loads += [value for name, value in told.items() if (tag, name) in LOADS]
        if tag == "link" and STYLES & set(told.get("rel", "").split()):
            self.loads.append(told.get("href", ""))
        if tag == "a" and "href" in told:
            self.links.append(told["href"])
        self.anchors |= {told[name] for name in ("id", "name") if name in told}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "tools/docs_site.py", "build", "--to", str(place)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (built.returncode, built.stderr) == (0, "")
    return place


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Looked]:
    return {page: Looked(page.read_text("utf-8")) for page in site.rglob("*.html")}


def test_every_page_of_docs_is_on_the_site(site: Path, pages: dict[Path, Looked]) -> None:
    told = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    made = [
        site / (page.with_name("index.html") if page.name == "README.md" else page.with_suffix(".html"))
        for page in told
    ]
    assert len(made) > 100
    assert [page for page in made if page not in pages] == []


def test_every_link_and_anchor_leads_somewhere(site: Path, pages: dict[Path, Looked]) -> None:
    lost = []
    for page, looked in pages.items():
        if page.name == "404.html":  # served for any address: its links are those of the site's root
            continue
        for link in looked.links:
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = unquote(link).partition("#")
            there = (page.parent / path).resolve() if path else page
            there = there / "index.html" if there.is_dir() else there
            if not there.exists() or (anchor and there in pages and anchor not in pages[there].anchors):
                lost.append(f"{page.relative_to(site)}: {link}")
    assert lost == []


def test_nothing_on_a_page_is_fetched_from_elsewhere(site: Path, pages: dict[Path, Looked]) -> None:
    assert [load for looked in pages.values() for load in looked.loads if ELSEWHERE.match(load)] == []
    styles = [style.read_text("utf-8") for style in site.rglob("*.css")]
    assert styles
    assert [
        found for style in styles for found in re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)]*", style)
    ] == []
    # Material fetches mermaid for diagrams, from a host of others: ours are pictures.
    assert [page.name for page in pages if 'class="mermaid"' in page.read_text("utf-8")] == []


def test_the_pictures_of_the_console_are_on_it(site: Path) -> None:
    page = (site / "howto" / "console.html").read_text("utf-8")
    pictures = re.findall(r'<img[^>]* src="([^"]+)"', page)
    assert len(pictures) == (ROOT / "docs" / "howto" / "console.md").read_text("utf-8").count("![") > 4
    assert [picture for picture in pictures if not (site / "howto" / picture).exists()] == []


def test_the_pages_of_the_api_have_names_signatures_and_docstrings(site: Path) -> None:
    page = re.sub(r"<[^>]+>", "", (site / "reference" / "api" / "client.html").read_text("utf-8"))
    assert "for one operation, with its retries." in page  # of `connect`
    methods = [name for name in vars(headwater.client.Client) if not name.startswith("_")]
    assert [name for name in methods if f"{name}(" not in page] == []


@pytest.mark.parametrize("module", ["client", "testing", "errors", "spark"])
def test_each_public_class_has_its_place_in_the_pages_of_the_api(site: Path, module: str) -> None:
    found = importlib.import_module(f"headwater.{module}")
    names = getattr(found, "__all__", [name for name in vars(found) if not name.startswith("_")])
    classes = [name for name in names if inspect.isclass(getattr(found, name))]
    told = "".join(page.read_text("utf-8") for page in (site / "reference").rglob("*.html"))
    places = {anchor.rpartition(".")[2] for anchor in re.findall(r'id="(headwater\.[^"]+)"', told)}
    if module == "errors":  # a page of its own, a table
        places = set(re.findall(r"<code>(\w+)</code>", told))
    assert [name for name in classes if name not in places] == []


def test_search_finds_words_without_the_internet_and_without_a_server(site: Path) -> None:
    assert "fdatasync" in (site / "search.json").read_text("utf-8")
    assert "fdatasync" in (site / "search.js").read_text("utf-8")
    assert (site / "assets" / "iframe-worker.js").exists()


def test_usage_lines_show_their_brackets_without_backslashes(site: Path) -> None:
    page = (site / "reference" / "cli.html").read_text("utf-8")
    assert "headwater serve [OPTIONS]" in re.sub(r"<[^>]+>", "", page) and "\\[" not in page


def test_the_first_page_says_what_headwater_is_with_a_picture_before_it_lists(site: Path) -> None:
    page = (site / "index.html").read_text("utf-8").partition("<article")[2]
    text, picture, items = (
        page.index("stores documents by key"),
        page.index("assets/overview.svg"),
        page.index("<li>"),
    )
    assert text < picture < items
    assert (site / "assets" / "overview.svg").exists()


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# a\n\n[b](b.md) [c](#c)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: a\n")
    words = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "-f", str(tmp_path / "mkdocs.yml")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0 and "2 issues found" in done.stdout + done.stderr
