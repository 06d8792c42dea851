"""The report's page in a real browser: complete, still, and readable on a phone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import report_runs as runs
from playwright import sync_api

from efficient_attn.report import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    run = runs.write_run(tmp_path_factory.mktemp("runs") / "quickstart", runs.everything())
    return write_report([run], run).page.as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    # a check that is skipped unseen is no check: without a browser it fails
    assert CHROMIUM, "no chromium found: install it (apt-get install chromium) to check the report's page"
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


LOOKS = [(400, "light"), (1280, "light"), (1280, "dark")]


@pytest.fixture(params=[pytest.param(p, id=f"{p[0]}px-{p[1]}", marks=pytest.mark.sampled(3)) for p in LOOKS])
def page(request: pytest.FixtureRequest, browser: sync_api.Browser, address: str) -> Iterator[sync_api.Page]:
    """The page at a width, having asked for nothing but itself and complained of nothing."""
    width, scheme = request.param
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda it: requests.append(it.url))
    page.on("console", lambda it: complaints.append(it.text))
    page.on("pageerror", lambda it: complaints.append(str(it)))
    page.goto(address, wait_until="networkidle")
    yield page
    assert [url for url in requests if not url.startswith("data:")] == [address]
    assert complaints == []
    page.close()


def test_nothing_is_wider_than_the_screen(page: sync_api.Page) -> None:
    for details in page.locator("details").all():
        details.evaluate("it => { it.open = true }")
    width = page.viewport_size["width"] if page.viewport_size else 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_all_plots_are_seen_and_their_names_fit(page: sync_api.Page) -> None:
    plots = page.locator("figure svg")
    assert plots.count() == 13
    for plot in plots.all():
        box = plot.bounding_box()
        assert box
        assert box["width"] > 300
        assert box["height"] > 150
        card = plot.evaluate("it => getComputedStyle(it.parentElement).backgroundColor")
        assert card == "rgb(255, 255, 255)", "plots have dark ink, so that their ground stays white"
    beyond = """() => [...document.querySelectorAll("figure svg text")].filter(text => {
        const a = text.getBoundingClientRect(), b = text.closest("svg").getBoundingClientRect();
        return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1;
    }).map(text => text.textContent)"""
    assert page.evaluate(beyond) == []


def test_text_stands_out_from_its_ground(page: sync_api.Page) -> None:
    """WCAG's contrast of at least 4.5 for body, soft text, links and verdicts."""
    contrast = """(selector) => {
        const light = (text) => {
            const [r, g, b] = text.match(/[0-9.]+/g).slice(0, 3).map(Number).map(v => v / 255)
                .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const ink = light(getComputedStyle(document.querySelector(selector)).color);
        const ground = light(getComputedStyle(document.body).backgroundColor);
        return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
    }"""
    for selector in ("p.lead", "p.intro", "nav a", "td.faster", "figcaption"):
        assert page.evaluate(contrast, selector) >= 4.5, selector


def test_tables_sort_by_the_numbers_behind_the_text(page: sync_api.Page) -> None:
    table = page.locator("#speed table").first
    times = """table => [...table.tBodies[0].rows].map(row => Number(row.cells[2].dataset.sort))"""
    names = """table => [...table.tBodies[0].rows].map(row => row.cells[0].textContent)"""
    written = table.evaluate(times)
    assert written == sorted(written)
    button = table.locator("thead button", has_text="Time").first
    button.click()
    assert table.locator("th[aria-sort=ascending]").inner_text().startswith("Time")
    assert table.evaluate(times) == sorted(written)
    button.click()
    assert table.evaluate(times) == sorted(written, reverse=True)
    table.locator("thead button", has_text="Variant").click()
    assert table.evaluate(names) == sorted(table.evaluate(names))


def test_all_rows_can_be_opened_and_sorted(page: sync_api.Page) -> None:
    page.locator("#rows summary").click()
    rows = page.locator("#rows tbody tr")
    assert rows.count() == 85
    page.locator("#rows thead button", has_text="latency_ms").first.click()
    column = """() => { const head = [...document.querySelectorAll("#rows th")].map(th => th.textContent);
        const at = head.indexOf("latency_ms");
        return [...document.querySelectorAll("#rows tbody tr")].map(row => row.cells[at].textContent) }"""
    shown = page.evaluate(column)
    filled = [float(text) for text in shown if text]
    assert filled == sorted(filled)
    assert all(not text for text in shown[len(filled) :]), "empty cells come last"


def test_the_page_reads_without_its_script(browser: sync_api.Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert page.locator("#speed table").first.is_visible()
    assert page.locator("thead button").count() == 0
    page.locator("#reproduce summary").first.click()
    assert "baseline" in page.locator("#reproduce details pre").first.inner_text()
    context.close()


def test_an_injected_script_does_not_run(browser: sync_api.Browser, tmp_path: Path) -> None:
    evil = "<img src=x onerror='window.hurt=1'><script>window.hurt=1</script>"
    lost = runs.Record(runs.row("full", status="error", reason=evil, mode="forward", seq_len=64))
    run = runs.write_run(tmp_path / "run", [lost], runs.about(suite={"title": evil}))
    page = browser.new_page()
    page.goto(write_report([run], run).page.as_uri())
    assert page.evaluate("window.hurt === undefined")
    assert evil in page.locator("#missing").inner_text()
    page.close()


def test_landmarks_and_headings_are_named(page: sync_api.Page) -> None:
    assert page.locator("html").get_attribute("lang") == "en"
    for landmark in ("header", "main", "nav[aria-label]", "footer", "h1"):
        assert page.locator(landmark).count() == 1, landmark
    unnamed = (
        """() => [...document.querySelectorAll("table")].filter(t => !t.caption || !t.querySelector("th[scope=col]"))"""
    )
    assert page.evaluate(f"({unnamed})().length") == 0
    assert page.locator("svg[role=img] > title").count() == page.locator("figure svg").count()
