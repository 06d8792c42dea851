"""The report's page in Chromium: content, accessibility, filters, sorting, and layout on phones and paper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import report_runs as runs
from axe_playwright_python.sync_playwright import Axe
from playwright import sync_api

from efficient_attn.report.write import write_report


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    run = runs.write_run(tmp_path_factory.mktemp("runs") / "quickstart", runs.everything())
    return write_report([run], run).page.as_uri()


LOOKS = [(400, "light"), (1280, "light"), (1280, "dark")]


@pytest.fixture(params=[pytest.param(p, id=f"{p[0]}px-{p[1]}", marks=pytest.mark.sampled(3)) for p in LOOKS])
def page(request: pytest.FixtureRequest, browser: sync_api.Browser, address: str) -> Iterator[sync_api.Page]:
    """The page at one width; afterwards checks that it made no other requests and logged no messages."""
    width, scheme = request.param
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    requests: list[str] = []
    messages: list[str] = []
    page.on("request", lambda it: requests.append(it.url))
    page.on("console", lambda it: messages.append(it.text))
    page.on("pageerror", lambda it: messages.append(str(it)))
    page.goto(address, wait_until="networkidle")
    yield page
    assert [url for url in requests if not url.startswith("data:")] == [address]
    assert messages == []
    page.close()


def open_all(page: sync_api.Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(it => { it.open = true })")


def test_axe_finds_nothing_serious(page: sync_api.Page) -> None:
    """axe-core's rules, with all folded parts open."""
    open_all(page)
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    violations = [(it["id"], it["impact"], [node["html"][:120] for node in it["nodes"][:3]]) for it in found]
    assert not [it for it in violations if it[1] in ("serious", "critical", "moderate")]


def test_the_first_tab_stop_skips_to_the_content(page: sync_api.Page) -> None:
    page.keyboard.press("Tab")
    link = page.locator("a.skip")
    assert link.evaluate("it => it === document.activeElement")
    assert (link.bounding_box() or {"y": -1})["y"] >= 0, "visible with focus"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_headings_and_regions_have_distinct_names(page: sync_api.Page) -> None:
    open_all(page)
    for selector in ("h1, h2, h3", "[role=region]", "nav a, .how a", "figure [role=group]"):
        names = page.locator(selector).evaluate_all("all => all.map(it => it.ariaLabel || it.textContent.trim())")
        assert len(set(names)) == len(names), selector


def test_a_phone_shows_speedup_and_error_in_the_first_two_columns(browser: sync_api.Browser, address: str) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(address)
    line = page.locator("#decide table").first.locator("tbody tr").first
    second = line.locator("td").first
    box = second.bounding_box()
    assert box
    assert box["x"] + box["width"] <= 390
    text = second.inner_text()
    assert re.search(r"<=512\n\d\d\.\dx \(.*\) at 8K\nas far from exact attention as the mean of v", text)
    page.set_viewport_size({"width": 1280, "height": 900})
    assert second.inner_text() == "<=512", "wide screens have separate columns"
    speed = page.locator("#details table").first.locator("thead th").nth(1)
    assert "Speedup over full" in (speed.text_content() or "")
    page.close()


def test_filters_hide_rows_and_the_csv_has_the_visible_ones(page: sync_api.Page) -> None:
    open_all(page)
    page.locator(".filters select").nth(0).select_option("linear")
    shown = page.locator("#rows tbody tr:visible")
    families = {row.text_content() for row in page.locator("#decide tbody tr:visible th").all()}
    assert families == {"linear", "performer:kind=positive:n_features=256"}
    assert 0 < shown.count() < 85
    assert page.locator(".filters output").inner_text() == f"{shown.count()} of 85 rows are chosen."
    with page.expect_download() as got:
        page.locator("#rows button.csv").click()
    lines = got.value.path().read_text().splitlines()
    assert len(lines) == 1 + shown.count()
    assert all("linear" in line or "performer" in line for line in lines[1:])


def test_filters_by_mode_and_task_hide_tables_plots_and_sections(page: sync_api.Page) -> None:
    open_all(page)
    labels = page.locator(".filters label").all()  # text that does not depend on whether they are drawn yet
    lists = {(label.text_content() or "").split()[0]: label.locator("select") for label in labels}

    def list_visible(part: str) -> set[str | None]:
        return {it.get_attribute(f"data-{part}") for it in page.locator(f"[data-{part}]:visible").all()}

    assert list_visible("task") >= {"speed", "fidelity"}
    assert list_visible("mode") >= {"forward", "decode"}
    lists["mode"].select_option("decode")
    assert list_visible("mode") == {"decode"}
    assert page.locator("#decoding").is_visible()
    assert not page.locator("#speed").is_visible(), "all its rows are hidden"
    assert not page.locator('nav a[href="#speed"]').is_visible()
    assert page.locator("#fidelity").is_visible(), "fidelity has no mode"
    lists["task"].select_option("fidelity")
    assert list_visible("task") == {"fidelity"}
    lists["mode"].select_option("")
    lists["task"].select_option("")
    assert list_visible("mode") >= {"forward", "decode"}
    assert page.locator("#speed").is_visible()


def test_formulas_are_escaped_in_the_csv(browser: sync_api.Browser, tmp_path: Path) -> None:
    rows = [runs.Record(runs.row(name, status="error", reason='=HYPERLINK("x")', seq_len=64)) for name in ("a", "=b")]
    page = browser.new_page()
    page.goto(write_report([runs.write_run(tmp_path / "run", rows)], tmp_path / "out").page.as_uri())
    open_all(page)
    with page.expect_download() as got:
        page.locator("#rows button.csv").click()
    text = got.value.path().read_text()
    assert '"\'=HYPERLINK(""x"")"' in text
    assert "'=b" in text
    page.close()


def test_print_keeps_intervals_on_one_line_and_repeats_headers(browser: sync_api.Browser, address: str) -> None:
    page = browser.new_page(viewport={"width": 800, "height": 1100})
    page.goto(address)
    page.emulate_media(media="print")
    assert page.locator("#decide thead").first.evaluate("it => getComputedStyle(it).display") == "table-header-group"
    cell = page.locator("#decide tbody td.faster").first
    assert cell.evaluate("it => getComputedStyle(it).whiteSpace") == "nowrap"
    assert page.evaluate("document.documentElement.scrollWidth") <= 800
    assert not page.locator("nav").is_visible()
    page.close()


def test_nothing_is_wider_than_the_screen(page: sync_api.Page) -> None:
    open_all(page)
    for tag in ("h1", "summary"):  # a long spec is one word
        page.locator(tag).first.evaluate("it => it.append('peer_flex_longformer:n_global=64:window=128'.repeat(9))")
    width = page.viewport_size["width"] if page.viewport_size else 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_all_plots_are_visible_and_their_labels_fit(page: sync_api.Page) -> None:
    plots = page.locator("figure svg")
    assert plots.count() == 20
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    for plot in plots.all():
        box = plot.bounding_box()
        assert box
        assert box["width"] > 300
        assert box["height"] > 150
        card = plot.evaluate("it => getComputedStyle(it.parentElement).backgroundColor")
        assert card == ("rgb(26, 30, 35)" if dark else "rgb(255, 255, 255)")
        ink = plot.evaluate("it => getComputedStyle(it.querySelector('text')).fill")
        assert ink == ("rgb(228, 231, 235)" if dark else "rgb(27, 31, 36)"), "charts follow the colors of the page"
        sizes = "it => [...it.querySelectorAll('text')].map(t => parseFloat(getComputedStyle(t).fontSize))"
        scale = box["width"] / float(plot.get_attribute("viewBox").split()[2])
        assert min(plot.evaluate(sizes)) * scale >= 10, "legible on a phone"
    list_clipped = """() => [...document.querySelectorAll("figure svg text")].filter(text => {
        const a = text.getBoundingClientRect(), b = text.closest("svg").getBoundingClientRect();
        return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1;
    }).map(text => text.textContent)"""
    assert page.evaluate(list_clipped) == []


def test_text_has_sufficient_contrast(page: sync_api.Page) -> None:
    """A WCAG contrast of at least 4.5 for body text, captions, links and verdicts."""
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
    for selector in ("p.lead", "p.intro", "nav a", "td.faster", "figcaption", "td small", "p.environment"):
        assert page.evaluate(contrast, selector) >= 4.5, selector


def test_tables_sort_by_unformatted_numbers(page: sync_api.Page) -> None:
    open_all(page)
    table = page.locator("#details table").first
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


def test_the_page_is_readable_without_javascript(browser: sync_api.Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert page.locator("#decide table").first.is_visible()
    assert page.locator("thead button").count() == 0
    for summary in page.locator("#reproduce summary").all():
        summary.click()
    assert "baseline" in page.locator("#reproduce details.suite pre").inner_text()
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


def test_large_tables_show_100_rows_and_sort_all(browser: sync_api.Browser, tmp_path: Path) -> None:
    many = [runs.row("full", mode="forward", seq_len=n, latency_ms=1e3 - n) for n in range(1, 502)]
    for number, row in enumerate(many):
        row.case_key = f"case{number}"
    run = runs.write_run(tmp_path / "run", map(runs.Record, many))
    page = browser.new_page()
    page.goto(write_report([run], run).page.as_uri())
    open_all(page)
    lines = page.locator("#rows tbody tr")
    assert lines.count() == 100
    page.locator("#rows thead button", has_text="latency_ms").first.click()
    assert lines.count() == 100
    assert "501" in lines.first.inner_text(), "the last row has the smallest time"
    page.locator("#rows button", has_text="Show all 501 rows").click()
    assert lines.count() == 501
    page.close()
