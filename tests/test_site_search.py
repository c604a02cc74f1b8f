"""The search of the site in a real Chromium, from the folder: no server, no internet. Run by `make console-test`."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from tests.test_site import site

__all__ = ["site"]

selenium = pytest.importorskip("selenium", reason="selenium is not installed; make console-test installs it")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if CHROMIUM is None or DRIVER is None:
    pytest.skip("there is no Chromium with its driver here", allow_module_level=True)

from selenium.webdriver import Chrome, ChromeOptions  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402

# The search is a tree of its own in the page.
TREES = "Array.from(document.querySelectorAll('*'), each => each.shadowRoot).filter(each => each)"
FOUND = f"return {TREES}.flatMap(tree => Array.from(tree.querySelectorAll('a'), each => each.href))"
TYPING = f"return {TREES}.some(tree => tree.activeElement && tree.activeElement.tagName === 'INPUT')"


def test_a_search_for_rollback_finds_pages_in_the_folder(site: Path) -> None:
    options = ChromeOptions()
    options.binary_location = str(CHROMIUM)
    nowhere = "--host-resolver-rules=MAP * ~NOTFOUND"
    for each in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900", nowhere):
        options.add_argument(each)
    chrome = Chrome(options=options, service=Service(str(DRIVER)))
    try:
        chrome.get((site / "index.html").as_uri())
        chrome.find_element(By.TAG_NAME, "body").send_keys("/")
        end = time.monotonic() + 120
        while not chrome.execute_script(TYPING):
            assert time.monotonic() < end, "the key / leads to the field of the search"
            time.sleep(0.2)
        chrome.switch_to.active_element.send_keys("rollback")
        while not (found := chrome.execute_script(FOUND)):
            assert time.monotonic() < end, "pages are found"
            time.sleep(0.2)
    finally:
        chrome.quit()
    assert any("/howto/" in each for each in found)
    assert all(each.startswith("file://") for each in found)
