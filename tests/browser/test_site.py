"""The published site in Chromium: hostile names run no scripts and make no requests; picker, leaderboard, axe."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import hostile
import pytest
import report_runs as runs
import sites
from axe_playwright_python.sync_playwright import Axe
from made_once import make_once
from playwright import sync_api

from efficient_attn.report.site import leaderboard
from efficient_attn.report.site.build import publish
from efficient_attn.results.rows import Record


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> Path:
        return publish([hostile.write_run(folder)], folder / "site").site

    return make_once(tmp_path_factory, "hostile_site", make)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    return publish(sites.write_runs(folder), folder / "site").site


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of 1,000 rows in many blocks of at most 20 kB."""

    def make(folder: Path) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(leaderboard, "MAX_BLOCK_BYTES", 20_000)
            return publish([runs.write_run(folder / "run", _make_rows(250))], folder / "site").site

    return make_once(tmp_path_factory, "large_site", make)


def _make_rows(count: int) -> Iterator[Record]:
    """Two machines and two directions, with distinct times."""
    for number in range(count):
        for machine in ("A-2c-8GiB#1", "B-2c-8GiB#2"):
            for causal in (False, True):
                variant = f"sliding_window:window={number + 1}" if number else "full"
                ms = 100.0 + number if number else 500.0
                row = runs.row(variant, mode="forward", causal=causal, seq_len=8192, machine=machine, latency_ms=ms)
                row.speedup, row.baseline = 500 / ms, "full"
                yield Record(row)


def _open(browser: sync_api.Browser, path: Path, state: str = "") -> sync_api.Page:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(path.as_uri() + state)
    return page


def _wait(page: sync_api.Page, condition: str) -> None:
    """Wait for a condition; the page's policy allows no `wait_for_function`."""
    deadline_s = time.monotonic() + 20
    while not page.evaluate(condition):
        assert time.monotonic() < deadline_s, condition
        page.wait_for_timeout(20)


def _read_names(page: sync_api.Page) -> list[str]:
    return page.locator("#rows th").evaluate_all("all => all.map(it => it.textContent)")


@pytest.mark.sampled(10, together="site.evil")
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
    # every tenth page of mechanisms, claims and tasks, which are similar
    every = sorted(evil.rglob("*.html"))
    alike = [path for path in every if path.parent.name in ("m", "c", "t")]
    shown = [path for path in every if path not in alike] + alike[::10]
    assert len(shown) > 20
    for path in shown:
        page.goto(path.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(it => { it.open = true })")
        page.evaluate("document.querySelectorAll('*').forEach(it => it.dispatchEvent(new MouseEvent('mouseover')))")
        assert page.evaluate("window.hurt") is None, path.name
    page.goto((evil / "leaderboard.html").as_uri())
    page.click("#reset")  # all rows
    for name in ("leaderboard.html", "index.html"):
        page.goto((evil / name).as_uri())
        for chosen in page.locator("select").all():
            for value in chosen.locator("option").evaluate_all("all => all.map(it => it.value)")[:8]:
                choose = "(it, value) => { it.value = value; it.dispatchEvent(new Event('change')); }"
                chosen.evaluate(choose.replace("'change'", "'input'"), value)
                chosen.evaluate(choose, value)
                assert page.evaluate("window.hurt") is None
    inside = evil.as_uri()
    assert [url for url in requests if not url.startswith((inside, "data:"))] == []
    assert messages == []
    context.close()


def test_a_state_with_hostile_values_is_ignored(browser: sync_api.Browser, small: Path) -> None:
    state = "#machine=<img src=x onerror=window.hurt=1>&length=-1&sort=constructor&order=x&page=1e99&use=__proto__"
    for name in ("index.html", "leaderboard.html"):
        page = _open(browser, small / name, state)
        _wait(page, "document.querySelectorAll('#rows tr').length > 0")
        assert page.evaluate("window.hurt") is None
        page.close()


def test_the_picker_answers_and_keeps_its_state_in_the_address(browser: sync_api.Browser, small: Path) -> None:
    page = _open(browser, small / "index.html")
    before = page.locator("#sentence").inner_text(), _read_names(page)
    page.select_option("#use", "decode")
    _wait(page, "location.hash.includes('use=decode')")
    lengths = page.locator("#length option").all_inner_texts()
    assert lengths == ["1K", "2K", "4K", "8K", "16K"]
    page.select_option("#quality", "any")
    for length, interpolated in (("4096", False), ("8192", True)):
        page.select_option("#length", length)
        _wait(page, f"location.hash.includes('length={length}')")
        rows = page.locator("#rows tr").all_inner_texts()
        assert len(rows) == 3
        assert all(("interpolated between 4K and 16K" in row) == interpolated for row in rows)
    again = _open(browser, small / "index.html", page.evaluate("location.hash"))
    _wait(again, "document.getElementById('length').value === '8192'")
    assert again.locator("#rows tr").all_inner_texts() == page.locator("#rows tr").all_inner_texts()
    page.select_option("#machine", label="Other-x8")  # which has no decode steps
    _wait(page, "document.getElementById('use').value === 'encode'")
    assert page.locator("#use option:disabled").count() == 4
    page.close()
    again.close()
    assert before[1] == ["full"]


def test_the_shape_is_chosen_and_kept_in_the_address(browser: sync_api.Browser, small: Path) -> None:
    page = _open(browser, small / "index.html")
    _wait(page, "document.getElementById('shape').options.length > 1")
    texts = page.locator("#shape option").all_inner_texts()
    assert texts[0] == "most measured (512\u20138K)"
    page.select_option("#use", "decode")
    _wait(page, "location.hash.includes('use=decode')")
    shape = "float32, 8 heads of size 64, batch 1, 1 thread"
    assert page.locator("#shape option").all_inner_texts()[1:] == [f"{shape} (1K\u201316K)"]
    page.select_option("#shape", shape)
    _wait(page, "location.hash.includes('shape=float32')")
    again = _open(browser, small / "index.html", page.evaluate("location.hash"))
    _wait(again, f"document.getElementById('shape').value === '{shape}'")
    assert again.locator("#config").inner_text() == shape
    run = again.locator("#rows td[data-label=Speedup] a").first
    assert (small / str(run.get_attribute("href"))).is_file()
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.select_option("#use", "encode")  # which has no such shape
    _wait(page, "document.getElementById('shape').value === 'most measured'")
    page.close()
    again.close()


@pytest.mark.sampled(4)
def test_the_chosen_length_returns_after_a_shape_without_it(browser: sync_api.Browser, tmp_path: Path) -> None:
    records = [*runs.speed(), *runs.speed(lengths=(2048,), heads=16, kv_heads=16)]
    site = publish([runs.write_run(tmp_path / "run", records)], tmp_path / "site").site
    page = _open(browser, site / "index.html", "#length=512")
    for shape, lengths, length in (("float32, 16", 1, "2048"), ("most measured", 5, "512")):
        _wait(page, "document.getElementById('shape').options.length > 2")
        options = page.locator("#shape option").evaluate_all("all => all.map(it => it.value)")
        page.select_option("#shape", next(value for value in options if value.startswith(shape)))
        _wait(page, f"document.getElementById('length').options.length === {lengths}")
        assert page.locator("#length").input_value() == length
    page.select_option("#length", "1024")
    page.select_option("#shape", index=2)
    page.select_option("#shape", index=0)
    _wait(page, "document.getElementById('length').value === '1024'")
    page.close()


def test_the_static_answer_equals_that_of_the_script(browser: sync_api.Browser, small: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    static = context.new_page()
    static.goto((small / "index.html").as_uri())
    text = static.locator("#answers ~ table").inner_text()
    assert static.locator("noscript").inner_text().startswith("The controls require JavaScript")
    page = _open(browser, small / "index.html")
    page.select_option("#quality", "any")
    page.select_option("#quality", "error-0.1")
    _wait(page, "location.hash.includes('error-0.1')")
    assert page.locator("#answers ~ table").inner_text() == text
    context.close()
    page.close()


@pytest.mark.sampled(5, together="site.large")
def test_the_leaderboard_sorts_filters_and_pages(browser: sync_api.Browser, large: Path) -> None:
    blocks = list(large.glob("leaderboard-*.js"))
    assert len(blocks) > 4
    assert max(path.stat().st_size for path in blocks) <= 20_000
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    requests: list[str] = []
    page.on("request", lambda it: requests.append(it.url.rpartition("/")[2]))
    page.goto((large / "leaderboard.html").as_uri())
    page.wait_for_selector("#rows tr")
    # only the blocks of the first machine
    assert 0 < len([name for name in requests if name.startswith("leaderboard-")]) <= len(blocks) // 2
    assert page.locator("#status").inner_text() == "250 of 1,000 results, page 1 of 3."
    assert _read_names(page)[0] == "sliding_windowwindow=2"  # the fastest
    assert page.locator("#rows tr").count() == 100
    page.click("#next")
    _wait(page, "document.getElementById('status').textContent.includes('page 2')")
    assert "page=2" in page.evaluate("location.hash")
    page.focus("#head-time")
    page.keyboard.press("Enter")  # ascending
    _wait(page, "document.querySelector('[aria-sort]').textContent.startsWith('Time')")
    assert (page.locator("[aria-sort]").count(), _read_names(page)[0]) == (1, "sliding_windowwindow=2")
    page.keyboard.press("Enter")
    page.wait_for_selector("[aria-sort=descending]")
    assert _read_names(page)[:2] == ["full", "sliding_windowwindow=250"]
    page.fill("#search", "window=12 sliding")
    _wait(page, "document.getElementById('status').textContent.startsWith('11 of')")
    again = _open(browser, large / "leaderboard.html", page.evaluate("location.hash"))
    again.wait_for_selector("#rows tr")
    assert _read_names(again) == _read_names(page)
    page.click("#reset")
    _wait(page, "document.getElementById('status').textContent.startsWith('1,000 of')")
    assert set(requests) >= {path.name for path in blocks}
    page.fill("#search", "nothing of this kind")
    _wait(page, "document.getElementById('status').textContent.startsWith('0 of')")
    page.close()
    again.close()


@pytest.mark.sampled(5, together="site.large")
def test_a_missing_block_is_reported(browser: sync_api.Browser, large: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(large, tmp_path / "copy"))
    for path in copy.glob("leaderboard-*.js"):
        path.unlink()
    page = _open(browser, copy / "leaderboard.html")
    _wait(page, "document.getElementById('status').textContent.includes('cannot be loaded')")
    page.close()


PAGES = (
    "index.html",
    "leaderboard.html",
    "mechanisms.html",
    "crossovers.html",
    "libraries.html",
    "tasks.html",
    "runs.html",
)
PAGES += ("claims.html", "m/linear-????????.html", "c/*.html", "t/fidelity*.html", "t/speed*.html", "r/*/index.html")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.sampled(4)
def test_axe_finds_nothing_serious_and_nothing_is_wider_than_the_screen(
    scheme: str, browser: sync_api.Browser, small: Path
) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    for name in PAGES:
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto(next(small.glob(name)).as_uri())
        found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
        violations = [(it["id"], it["impact"], it["nodes"][0]["html"][:120]) for it in found]
        assert not [it for it in violations if it[1] in ("serious", "critical") or it[0] == "heading-order"], name
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    context.close()


def test_the_front_page_is_small_and_its_answer_fits_the_first_screens(browser: sync_api.Browser, small: Path) -> None:
    page = _open(browser, small / "index.html", "#use=decode&quality=any&length=4096")
    _wait(page, "document.getElementById('use').value === 'decode'")
    assert page.evaluate("document.documentElement.scrollHeight") <= 3000
    assert page.evaluate("document.querySelector('#answer').getBoundingClientRect().bottom") <= 800
    page.set_viewport_size({"width": 390, "height": 844})
    boxes = page.locator("#rows td[data-label=Quality]").evaluate_all(
        "all => all.map(it => it.getBoundingClientRect().right)"
    )
    assert 0 < max(boxes) <= 390
    assert len(page.locator("body").inner_text().split()) <= 400
    page.close()
