"""The published site in Chromium: hostile names run no scripts and make no requests; the picker and accessibility."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import hostile
import pytest
import sites
from axe_playwright_python.sync_playwright import Axe
from playwright import sync_api

from efficient_attn.report.site.build import publish

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    # fails rather than skips without a browser, so that a missing one is noticed
    assert CHROMIUM, "no chromium found: install it (apt-get install chromium) to check the site"
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evil")
    return publish([hostile.write_run(folder)], folder / "site").site


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    return publish(sites.write_runs(folder), folder / "site").site


def test_200_hostile_names_run_no_scripts_and_make_no_requests(browser: sync_api.Browser, evil: Path) -> None:
    assert len(set(hostile.HOSTILE)) == 200
    context = browser.new_context()
    page = context.new_page()
    requests: list[str] = []
    messages: list[str] = []
    page.on("request", lambda it: requests.append(it.url))
    page.on("console", lambda it: messages.append(it.text))
    page.on("pageerror", lambda it: messages.append(str(it)))
    page.on("dialog", lambda it: messages.append(it.message))
    # every tenth page of mechanisms, comparisons and tasks, which are similar
    every = sorted(evil.rglob("*.html"))
    alike = [path for path in every if path.parent.name in ("m", "c", "t")]
    shown = [path for path in every if path not in alike] + alike[::10]
    assert len(shown) > 20
    for path in shown:
        page.goto(path.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(it => { it.open = true })")
        page.evaluate("document.querySelectorAll('*').forEach(it => it.dispatchEvent(new MouseEvent('mouseover')))")
        assert page.evaluate("window.hurt") is None, path.name
    page.goto((evil / "index.html").as_uri())
    for chosen in page.locator("select").all():
        for value in chosen.locator("option").evaluate_all("all => all.map(it => it.value)")[:8]:
            chosen.select_option(value)
            assert page.evaluate("window.hurt") is None
    inside = evil.as_uri()
    assert [url for url in requests if not url.startswith((inside, "data:"))] == []
    assert messages == []
    context.close()


def test_the_picker_marks_measured_and_interpolated_lengths(browser: sync_api.Browser, small: Path) -> None:
    page = browser.new_page()
    page.goto((small / "index.html").as_uri())
    page.select_option("#use", "decode")
    lengths = page.locator("#length option").all_inner_texts()
    assert lengths == ["1K", "2K, interpolated", "4K", "8K, interpolated", "16K"]
    for length, how in (("4096", "measured"), ("8192", "interpolated")):
        page.select_option("#length", length)
        rows = page.locator("#picked tr")
        assert {row.get_attribute("class") for row in rows.all()} == {how}
        assert all(how in row.inner_text() for row in rows.all())
        assert ("\u2248" in rows.first.inner_text()) == (how == "interpolated")
        assert ("8K was not measured here" in page.locator("#summary").inner_text()) == (how == "interpolated")
    page.close()


def test_axe_finds_nothing_serious_and_nothing_is_wider_than_the_screen(browser: sync_api.Browser, small: Path) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    for name in ("index.html", "b/*.html", "m/linear-????????.html", "c/*.html", "t/*.html"):
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto(next(small.glob(name)).as_uri())
        if name == "index.html":
            page.select_option("#use", "decode")
            page.select_option("#length", "8192")  # interpolated
        found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
        violations = [(it["id"], it["impact"], it["nodes"][0]["html"][:120]) for it in found]
        assert not [it for it in violations if it[1] in ("serious", "critical")], name
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    page.close()
