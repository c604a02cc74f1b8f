"""The console in a real Chromium: what no test of answers can see. `make console-test` runs it and makes the pictures.

Skipped where there is no Chromium with its driver, or no selenium. With HEADWATER_AXE, the path of axe.min.js, axe-core
looks at every page; with HEADWATER_PICTURES, a folder, the pictures of docs/howto/console.md are taken.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headwater import testing
from headwater.console.desk import PAGES
from tests.cluster.nodes import init

from .support import Running, running

selenium = pytest.importorskip("selenium", reason="selenium is not installed; make console-test installs it")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if CHROMIUM is None or DRIVER is None:
    pytest.skip(
        "there is no Chromium with its driver here (apt-get install chromium chromium-driver)", allow_module_level=True
    )

from selenium.webdriver import Chrome, ChromeOptions  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

WINDOW = (1080, 700)
ATTACK = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
FLAWS = "return axe.run(document, {resultTypes: ['violations']}).then(found => found.violations.map(each => "
FLAWS += "each.id + ': ' + each.nodes.map(node => node.target + ' ' + node.failureSummary).join(' | ')))"


def until(true: Callable[[], Any], why: str, seconds: float = 120.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, why
        time.sleep(0.1)
    return found


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[testing.Node]]:
    with ExitStack() as stack:
        made = [stack.enter_context(testing.node(vbuckets=256, vbucket_state="none")) for _ in range(3)]
        init(*made, replicas=1)
        with made[0].client() as bucket:
            bucket.set_many({f"order::{number}": f'{{"number":{number},"paid":true}}' for number in range(2000)})
        yield made


@pytest.fixture(scope="module")
def made(nodes: list[testing.Node]) -> Iterator[Running]:
    with running(nodes[0].url) as console:
        yield console


@pytest.fixture(scope="module")
def page(made: Running) -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for each in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--window-size={WINDOW[0]},{WINDOW[1]}"):
        options.add_argument(each)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = Chrome(options=options, service=Service(str(DRIVER)))
    try:
        chrome.set_page_load_timeout(120)
        chrome.get(made.server.url)
        yield chrome
    finally:
        chrome.quit()


@pytest.fixture
def go(page: Chrome, made: Running) -> Callable[[str], None]:
    return lambda path: page.get(f"http://127.0.0.1:{made.server.port}{path}")


def find(page: Chrome, selector: str) -> Any:
    return page.find_element(By.CSS_SELECTOR, selector)


def text(page: Chrome, selector: str = "body") -> str:
    return str(page.execute_script("return document.querySelector(arguments[0]).innerText", selector))


def picture(page: Chrome, name: str) -> None:
    """Take a picture for the guide, if that is asked for; one that is too large for it fails."""
    if folder := os.environ.get("HEADWATER_PICTURES"):
        path = Path(folder) / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        page.save_screenshot(str(path))
        assert path.stat().st_size <= 100 << 10, f"{path}: {path.stat().st_size} bytes"


def complaints(page: Chrome) -> list[str]:
    """Return the browser's complaints, errors of scripts and of the policy among them; but none of statuses we send."""
    told = [each["message"] for each in page.get_log("browser") if each["level"] in ("SEVERE", "WARNING")]
    return [each for each in told if "the server responded with a status of 4" not in each]


@pytest.mark.parametrize("path", [*dict(PAGES), "/vbuckets/3", "/documents?key=order::7", "/documents?key=none"])
def test_the_browser_and_axe_find_nothing_to_complain_of(page: Chrome, go: Callable[[str], None], path: str) -> None:
    go(path)
    assert complaints(page) == []
    if axe := os.environ.get("HEADWATER_AXE"):
        page.execute_script(Path(axe).read_text("utf-8"))
        assert page.execute_script(FLAWS) == []


@pytest.mark.parametrize("path", [path for path, _ in PAGES])
def test_a_narrow_dark_screen_needs_no_scrolling_to_the_side(
    page: Chrome, go: Callable[[str], None], path: str
) -> None:
    metrics = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    try:
        go(path)
        assert page.execute_script("return document.documentElement.scrollWidth") <= 360
        if axe := os.environ.get("HEADWATER_AXE"):
            page.execute_script(Path(axe).read_text("utf-8"))
            assert page.execute_script(FLAWS) == []
        if path == "/":
            picture(page, "console-narrow")
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_keyboard_comes_to_the_content_first(page: Chrome, go: Callable[[str], None]) -> None:
    go("/vbuckets")
    find(page, "body").send_keys(Keys.TAB)
    assert page.execute_script("return document.activeElement.textContent") == "Skip to the content"
    page.switch_to.active_element.send_keys(Keys.ENTER)
    assert page.execute_script("return document.activeElement.id") == "main"
    page.switch_to.active_element.send_keys(Keys.TAB)
    assert page.execute_script("return document.activeElement.name") == "owner"


def test_the_cluster_is_drawn(page: Chrome, go: Callable[[str], None], nodes: list[testing.Node]) -> None:
    go("/")
    assert len(page.find_elements(By.CSS_SELECTOR, ".cells rect")) == 256
    assert all(node.address in text(page) for node in nodes)
    picture(page, "console-cluster")


def test_a_document_is_edited_byte_for_byte(page: Chrome, go: Callable[[str], None], nodes: list[testing.Node]) -> None:
    value = "\n\n  <b>gr\u00fc\u00dfe</b> & \u20ac\n\ttab\n"
    with nodes[0].client() as bucket:
        bucket.set("edited", value, flags=9)
        before = bucket.set("bytes", bytes(range(256)))
        go("/documents?key=edited")
        find(page, "#value").send_keys(Keys.END, "")
        find(page, "#editor button").click()
        until(lambda: "The document is stored" in text(page), "it is stored")
        assert (bucket.get("edited").value.decode(), bucket.get("edited").flags) == (value, 9)
        go("/documents?key=bytes")
        find(page, "#editor button").click()
        until(lambda: "The document is stored" in text(page), "it is stored")
        assert bucket.get("bytes").value == bytes(range(256))
        assert bucket.get("bytes").cas > before
    go("/documents?key=order::7")
    picture(page, "console-document")


def test_no_key_and_no_value_runs(page: Chrome, go: Callable[[str], None], nodes: list[testing.Node]) -> None:
    with nodes[0].client() as bucket:
        bucket.set(ATTACK, ATTACK)
        go("/documents")
        field = find(page, "input[name=key]")
        field.send_keys(ATTACK)
        field.submit()
        until(lambda: page.find_elements(By.ID, "value"), "the document is shown")
        assert find(page, "#value").get_attribute("value") == ATTACK
        go("/tail?begin=1")
        until(lambda: "Running" in text(page, "#state"), "the tail runs")
        bucket.set(ATTACK, ATTACK)
        until(lambda: page.find_elements(By.CSS_SELECTOR, "#changes tbody tr"), "the change is shown")
        assert ATTACK in text(page, "#changes tbody")
    assert page.execute_script("return window.hacked === undefined")
    assert complaints(page) == []


def test_a_thousand_changes_a_second_are_counted_and_some_are_shown(
    page: Chrome, go: Callable[[str], None], nodes: list[testing.Node]
) -> None:
    go("/tail?begin=1&key=busy")
    until(lambda: "Running" in text(page, "#state"), "the tail runs")
    with nodes[0].client() as bucket:
        for turn in range(5):
            bucket.set_many({f"busy::{turn}::{number}": "x" * 60 for number in range(1000)})
    until(lambda: "5,000 of them wanted" in text(page, "#counts"), "all are counted")
    shown = len(page.find_elements(By.CSS_SELECTOR, "#changes tbody tr"))
    assert 0 < shown <= 500
    page.set_window_size(1080, 560)
    picture(page, "console-tail")
    page.set_window_size(*WINDOW)
    find(page, "#pause").click()
    with nodes[0].client() as bucket:
        bucket.set("busy::paused", "v")
    until(lambda: "5,001 of them wanted" in text(page, "#counts"), "it is counted while paused")
    assert "busy::paused" not in text(page, "#changes tbody")


def test_charts_have_a_line_for_each_node(page: Chrome, go: Callable[[str], None], nodes: list[testing.Node]) -> None:
    go("/rates")
    with nodes[0].client() as bucket:
        for turn in range(6):
            bucket.set_many({f"rated::{turn}::{number}": "v" for number in range(500)})
    lines = "[data-measure=writes] path"
    until(lambda: len(page.find_elements(By.CSS_SELECTOR, lines)) == 3, "each node has a line")
    assert "As of" in text(page, "#asof")
    assert "now 127.0.0.1" in find(page, "[data-measure=writes] svg").get_attribute("aria-label")
    assert all(node.address in text(page, "#table") for node in nodes)
    picture(page, "console-rates")


def test_a_node_that_goes_away_is_seen_without_a_hand_and_so_is_its_return(page: Chrome) -> None:
    with testing.node(vbuckets=4) as node, running(node.url) as console:
        page.get(console.server.url)
        assert "All nodes answer" in text(page)
        node.kill()
        until(lambda: "Stale." in text(page, "main"), "the page says that its figures are old")
        assert "All nodes answer" not in text(page)
        node.start()
        until(lambda: "All nodes answer" in text(page) and "Stale." not in text(page, "main"), "it is back")


def test_a_console_that_ended_leaves_no_figures_that_look_fresh(page: Chrome) -> None:
    with testing.node(vbuckets=4) as node:
        with running(node.url) as console:
            page.get(console.server.url)
            assert find(page, "#lost").get_attribute("hidden") is not None
        until(lambda: "does not answer" in text(page, "#lost"), "the page says so")
