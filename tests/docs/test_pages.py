"""Links between documents resolve, and tables of pages are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiny_suites
from doc_blocks import PAGES, ROOT, read_blocks

from efficient_attn.contract.mechanism import MASK_FIELDS
from efficient_attn.registry import catalogue, info
from efficient_attn.tasks import TABLE

PROJECT = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PROJECT += [ROOT / name for name in ("suites/data/README.md", "suites/trials/README.md", "results/README.md")]


@pytest.mark.parametrize("document", PROJECT + PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_resolve(document: Path) -> None:
    """In the repository, where GitHub renders the pages; the built site is tested by itself."""
    targets = [t for t in re.findall(r"\]\(([^)\s]+)\)", document.read_text()) if not t.startswith("http")]
    assert [t for t in targets if not (document.parent / t.partition("#")[0]).exists()] == []
    anchors = [(document.parent / path if path else document, anchor) for path, _, anchor in map(_split, targets)]
    assert [(p.name, a) for p, a in anchors if a and p.suffix == ".md" and a not in _anchors(p)] == []


def _split(target: str) -> tuple[str, str, str]:
    return target.partition("#")


def _anchors(document: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_training_task_is_listed() -> None:
    trained = [name for name, target in TABLE.items() if ".problem_table:" in target]
    text = (ROOT / "docs/concepts/training-tasks.md").read_text()
    assert [name for name in trained if f"| `{name}` |" not in text] == []
    assert trained


def test_every_family_is_listed() -> None:
    text = (ROOT / "docs/concepts/families.md").read_text()
    named = re.findall(r"^\| \[?([a-z_]+)[\]|( ]", text, re.MULTILINE)
    assert set(named) == {mechanism.family for mechanism in catalogue()}


def test_the_families_table_names_the_exceptions() -> None:
    """Sparse mechanisms that cache all keys, and other scores than that of exact attention."""
    lines = (ROOT / "docs/concepts/families.md").read_text().splitlines()
    cells = {cell[1].strip("[] ").partition("]")[0]: cell for line in lines if len(cell := line.split("|")) > 6}
    names = {family: {x.name for x in catalogue() if x.family == family} for family in ("full", "sparse")}
    unbounded = {name for name in names["sparse"] if (x := info(name).pattern) and x.reach is None}
    assert set(re.findall("`(.*?)`", cells["sparse"][3])) == unbounded
    assert set(re.findall("`(.*?)`", cells["full"][4])) == names["full"]
    assert "cannot be selected" not in cells["linear"][4]  # `linear` recalls keys: results/accuracy


def test_the_masks_table_has_every_field() -> None:
    rows = [line for line in (ROOT / "docs/reference/masks.md").read_text().splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([a-z_]+)`", row.split(" | ")[0])} == MASK_FIELDS


@pytest.mark.slow
def test_the_claims_of_the_growth_example_are_planned() -> None:
    (suite,) = [block.text for block in read_blocks(ROOT / "docs/concepts/growth.md") if block.language == "toml"]
    cases = tiny_suites.plan(suite)
    assert [(case.variant, case.group.of_blocks) for case in cases] == [
        *(("full", False), ("sliding_window:window=64", False)),
        *(("gru", True), ("sliding_window:window=64", True)),
    ]
    assert all(case.keys.find_claim(case.variant) for case in cases)


def test_every_page_is_reached_from_the_home_page() -> None:
    """By links, also where GitHub renders the pages and there is no navigation."""
    reached, found = {ROOT / "docs/README.md"}, [ROOT / "docs/README.md"]
    while found:
        page = found.pop()
        targets = re.findall(r"\]\(([^)\s#]+\.md)", page.read_text())
        new = {(page.parent / target).resolve() for target in targets if not target.startswith("http")} - reached
        reached |= new
        found += [path for path in new if path.is_relative_to(ROOT / "docs")]
    assert [path.name for path in PAGES if path not in reached] == []
