"""A browser for the tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright import sync_api

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    # fails rather than skips without a browser, so that a missing one is noticed
    assert CHROMIUM, "no chromium found: install it (apt-get install chromium) to check pages"
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()
