"""The documentation site in Chromium, opened from the disk: requests, search, widths, colour schemes, accessibility."""

from __future__ import annotations

import re
from pathlib import Path

import docs_site
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright import sync_api

pytestmark = pytest.mark.slow

PAGES = ("index", "tutorial/first-run", "how-to/add-a-score", "reference/mechanisms/bigbird", "reference/command-line")
SETTINGS = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]
STYLE = (docs_site.ROOT / "efficient_attn/report/templates/style.css").read_text()
BACKGROUND = dict(zip(("light", "dark"), re.findall(r"--page: (#[0-9a-f]{6});", STYLE), strict=False))  # of reports


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return docs_site.build(tmp_path_factory)


@pytest.mark.sampled(5, together="docs_site.site")
@pytest.mark.parametrize(("width", "scheme"), SETTINGS)
def test_pages_load_nothing_from_elsewhere_and_fit(
    browser: sync_api.Browser, site: Path, width: int, scheme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    requests: list[str] = []
    errors: list[str] = []
    page.on("request", lambda it: requests.append(it.url))
    page.on("pageerror", lambda it: errors.append(str(it)))
    page.on("console", lambda it: errors.append(it.text) if it.type == "error" else None)
    for name in PAGES:
        page.goto((site / f"{name}.html").as_uri())
        page.wait_for_timeout(300)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", colour)) == BACKGROUND[scheme], name
    assert [url for url in requests if not url.startswith((site.as_uri(), "data:", "blob:"))] == []
    assert len(requests) > len(PAGES)
    assert errors == []
    context.close()


@pytest.mark.sampled(5, together="docs_site.site")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: sync_api.Browser, site: Path, scheme: str) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    for name in PAGES:
        page.goto((site / f"{name}.html").as_uri())
        found = Axe().run(page).response["violations"]
        serious = [
            (it["id"], [node["html"][:120] for node in it["nodes"]][:3])
            for it in found
            if it["impact"] in ("serious", "critical")
        ]
        assert serious == [], name
    context.close()


@pytest.mark.sampled(5, together="docs_site.site")
def test_search_works_from_the_disk(browser: sync_api.Browser, site: Path) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    requests: list[str] = []
    page.on("request", lambda it: requests.append(it.url))
    page.goto((site / "index.html").as_uri())
    page.locator(".md-search__input").click()
    page.locator(".md-search__input").type("feature map", delay=20)
    results = page.locator(".md-search-result__link")
    results.first.wait_for(timeout=15000)
    assert any("add-a-feature-map" in (link.get_attribute("href") or "") for link in results.all())
    assert [url for url in requests if not url.startswith((site.as_uri(), "data:", "blob:"))] == []
    context.close()


@pytest.mark.sampled(5, together="docs_site.site")
def test_a_mechanism_shows_its_formula_and_pattern(browser: sync_api.Browser, site: Path) -> None:
    page = browser.new_page()
    page.goto((site / "reference/mechanisms/bigbird.html").as_uri())
    assert page.locator("math").count() == 2
    boxes = [svg.bounding_box() for svg in page.locator("svg.pattern").all()]
    assert len(boxes) == 2
    assert all(box and box["width"] > 100 and abs(box["width"] - box["height"]) < 2 for box in boxes)
    page.close()
