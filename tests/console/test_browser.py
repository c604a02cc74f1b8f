"""The console in a real Chromium: what no test of answers can see. `make console-test` runs it and makes the pictures.

Skipped where there is no Chromium with its driver, or no selenium. With HEADWATER_AXE, the path of axe.min.js, axe-core
looks at every page; with HEADWATER_PICTURES, a folder, the pictures of docs/howto/console.md are taken.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headwater import testing
from headwater.console.desk import PAGES
from headwater.console.rates import MEASURES
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


@pytest.mark.parametrize(
    "path",
    [*dict(PAGES), "/vbuckets/3", "/documents?key=order::7", "/documents?key=none", "/documents?prefix=order::1"],
)
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
    metrics = {"width": 320, "height": 740, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    try:
        go(path)
        assert page.execute_script("return document.documentElement.scrollWidth") <= 320
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


def test_a_prefix_leads_to_its_documents_and_they_are_shown_as_json(
    page: Chrome, go: Callable[[str], None], nodes: list[testing.Node]
) -> None:
    with nodes[0].client() as bucket:
        bucket.set("listed::1", '{"order":7,"who":{"name":"gr\\u00fc\\u00dfe"},"lines":[1,2]}')
    go("/documents")
    field = find(page, "input[name=prefix]")
    field.send_keys("listed::")
    field.submit()
    until(lambda: page.find_elements(By.LINK_TEXT, "listed::1"), "the key is listed")
    find(page, "main").find_element(By.LINK_TEXT, "listed::1").click()
    until(lambda: page.find_elements(By.CSS_SELECTOR, "pre.json"), "the document is shown")
    assert '"name": "gr\u00fc\u00dfe"\n  },' in text(page, "pre.json")
    assert find(page, "#value").get_attribute("value").startswith('{"order":7,"who"'), "what is edited are its bytes"
    picture(page, "console-document")
    go("/documents?prefix=order::1")
    picture(page, "console-keys")


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
    colours = "const told = document.querySelector('[data-measure=writes] canvas'); if (!told) return 0;"
    colours += "const data = told.getContext('2d').getImageData(0, 0, told.width, told.height).data, seen = new Set();"
    colours += (
        "for (let at = 0; at < data.length; at += 4) if (data[at + 3] === 255) seen.add(data.slice(at, at + 3).join());"
    )
    colours += "return ['11,106,162', '179,89,0', '29,122,74'].filter(each => seen.has(each)).length"
    until(lambda: page.execute_script(colours) == 3, "each node has a line of its colour")
    assert len(page.find_elements(By.CSS_SELECTOR, ".chart canvas")) == len(MEASURES)
    assert re.search(r"As of \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", text(page, "#asof")), "one clock"
    assert "As of" in text(page, "#asof")
    assert "now 127.0.0.1" in find(page, "[data-measure=writes] .plot").get_attribute("aria-label")
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


# --------------------------------------------------------------------------- hands, ears, several tabs, the way back


def focused(page: Chrome, what: str) -> str:
    return str(page.execute_script(f"return document.activeElement.{what}"))


def test_the_way_back_leads_from_a_plan_to_its_form_and_forward_to_the_plan(
    page: Chrome, go: Callable[[str], None]
) -> None:
    go("/actions")
    find(page, "form[action='/actions/rebalance/plan'] button").click()
    until(lambda: "nothing to do" in text(page) or "The plan" in text(page), "the plan is shown")
    page.back()
    until(lambda: text(page, "h1") == "Actions", "the form is back")
    page.forward()
    until(lambda: text(page, "h1") == "Rebalance: spread evenly", "the plan is back")


def test_what_was_refused_and_what_was_done_take_the_focus_so_that_they_are_read(
    page: Chrome, go: Callable[[str], None], nodes: list[testing.Node]
) -> None:
    go("/actions")
    complaints(page)  # of consoles that other tests ended
    find(page, "input[name=add]").send_keys("a/b", Keys.ENTER)
    until(lambda: "host:port" in text(page), "it is refused")
    assert focused(page, "getAttribute('role')") == "alert"
    assert complaints(page) == []
    with nodes[0].client() as bucket:
        bucket.set("by-hand", "v")
    go("/documents")
    assert focused(page, "name") == "key"
    page.switch_to.active_element.send_keys("by-hand", Keys.ENTER)
    until(lambda: page.find_elements(By.ID, "editor"), "the document is there")
    find(page, "#value").send_keys(" and again")
    while focused(page, "textContent") != "Store over this version":
        page.switch_to.active_element.send_keys(Keys.TAB)
    page.switch_to.active_element.send_keys(Keys.ENTER)
    until(lambda: "The document is stored" in text(page), "it is stored by the keyboard alone")
    assert focused(page, "getAttribute('role')") == "status"


def test_a_part_that_has_the_focus_is_kept_and_says_since_when(page: Chrome, go: Callable[[str], None]) -> None:
    go("/")
    assert find(page, "#held").get_attribute("hidden") is not None
    page.execute_script("document.querySelector('.wide').focus()")
    until(lambda: "Kept as it was at" in text(page, "#held"), "it says that it is not kept up to date")
    page.execute_script("document.activeElement.blur()")
    until(lambda: find(page, "#held").get_attribute("hidden") is not None, "it is kept up to date again")


def test_a_table_that_was_moved_to_the_side_stays_there_when_it_is_brought_up_to_date(
    page: Chrome, go: Callable[[str], None]
) -> None:
    metrics = {"width": 320, "height": 740, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        go("/")
        page.execute_script(
            "document.querySelector('.wide').scrollLeft = 200; document.querySelector('time').id = 'old'"
        )
        until(lambda: not page.find_elements(By.ID, "old"), "the page was brought up to date")
        assert page.execute_script("return document.querySelector('.wide').scrollLeft") == 200
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_many_tabs_of_live_pages_leave_connections_for_the_other_pages(page: Chrome, go: Callable[[str], None]) -> None:
    first = page.current_window_handle
    try:
        for path in ["/rates"] * 5 + ["/tail?begin=1"] * 5:
            page.switch_to.new_window("tab")
            go(path)
        page.switch_to.new_window("tab")
        go("/vbuckets")
        assert text(page, "h1") == "Vbuckets"
    finally:
        for handle in page.window_handles:
            if handle != first:
                page.switch_to.window(handle)
                page.close()
        page.switch_to.window(first)


def test_who_edits_in_two_tabs_is_told_and_loses_nothing(
    page: Chrome, go: Callable[[str], None], nodes: list[testing.Node]
) -> None:
    with nodes[0].client() as bucket:
        bucket.set("twice", "v")
    first = page.current_window_handle
    go("/documents?key=twice")
    page.switch_to.new_window("tab")
    go("/documents?key=twice")
    find(page, "#value").send_keys(" of the second tab")
    find(page, "#editor button").click()
    until(lambda: "The document is stored" in text(page), "the second tab stores")
    page.close()
    page.switch_to.window(first)
    find(page, "#value").send_keys(" of the first tab")
    find(page, "#editor button").click()
    until(lambda: "changed or deleted by somebody else" in text(page), "the first tab is told")
    assert find(page, "#value").get_attribute("value") == "v of the first tab"
    assert find(page, "#now").get_attribute("value") == "v of the second tab"
    find(page, "#editor [name=over]").click()
    find(page, "#editor button").click()
    until(lambda: "The document is stored" in text(page), "it is stored by choice")


def test_a_console_that_was_begun_anew_is_told_as_that(page: Chrome) -> None:
    with testing.node(vbuckets=4) as node:
        with running(node.url) as console:
            page.get(console.server.url)
            port = console.server.port
            page.switch_to.new_window("tab")
            page.get(f"http://127.0.0.1:{port}/tail?begin=1")
            until(lambda: "Running" in text(page, "#state"), "the tail runs")
        with running(node.url, port=port):
            until(lambda: "knows this browser no more" in text(page, "#state"), "the tail says so")
            page.close()
            page.switch_to.window(page.window_handles[0])
            until(lambda: "knows this browser no more" in text(page, "#lost"), "the page says so")
            page.get(f"http://127.0.0.1:{port}/actions")
            assert "Open the address" in text(page)


def test_the_longest_names_stay_on_a_narrow_screen(
    page: Chrome, go: Callable[[str], None], nodes: list[testing.Node]
) -> None:
    scope, collection, key = "s" * 251, "c" * 251, "k" * 245
    metrics = {"width": 320, "height": 740, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        go(f"/actions/collection-create/plan?name={scope}.{collection}")
        assert page.execute_script("return document.documentElement.scrollWidth") <= 320
        find(page, "button.danger").click()
        until(lambda: ": done" in text(page, "#live"), "it is made")
        with nodes[0].client() as bucket:
            bucket.collection(f"{scope}.{collection}").set(key, "v" * 5000)
        for path in ("/actions", "/collections", f"/documents?key={key}&collection={scope}.{collection}"):
            go(path)
            assert page.execute_script("return document.documentElement.scrollWidth") <= 320, path
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
