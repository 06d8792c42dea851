"""The verb publish."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sites
from shell import Command


@pytest.fixture
def here(tmp_path: Path) -> Path:
    sites.write_runs(tmp_path / "results")
    return tmp_path


@pytest.mark.sampled(4)
def test_all_runs_of_results_become_a_site_and_foreign_files_stop_it(here: Path, command: Command) -> None:
    done = command("publish", "--json")
    assert done.code == 0, done.err
    output = json.loads(done.out)
    assert output["site"] == "results/site"
    assert output["runs"] == 2
    site = here / "results" / "site"
    assert output["bytes"] < 5_000_000
    assert "time grows" in next(site.glob("m/linear-????????.html")).read_text().lower()
    reformer = next(site.glob("m/reformer-????????.html")).read_text()
    assert "<dt>Limits</dt><dd>no strict causality; " in reformer
    assert "@misc{kitaev2020," in reformer
    assert '<svg class="pattern"' not in reformer
    assert next(site.glob("m/bigbird-????????.html")).read_text().count('<svg class="pattern"') == 2
    assert (
        "How far each mechanism is from exact attention on queries" in next(site.glob("t/fidelity-*.html")).read_text()
    )
    assert "Documentation</a>" not in (site / "index.html").read_text()
    (site / "CNAME").write_text("example.org")
    stopped = command("publish")
    assert (stopped.code, stopped.out) == (2, "")
    message = "results/site: holds CNAME, not written by efficient-attn; move it away, or choose another --site"
    assert stopped.err == f"efficient-attn: {message}\n"


@pytest.mark.sampled(4)
def test_the_documentation_is_linked_if_its_address_is_a_page(here: Path, command: Command) -> None:
    done = command("publish", "--site", "site", "--docs", "../docs/")
    assert done.code == 0, done.err
    assert 'href="../../docs/">Documentation</a>' in next((here / "site").glob("t/fidelity-*.html")).read_text()
    stopped = command("publish", "--site", "other", "--docs", "javascript:alert(1)")
    message = "--docs javascript:alert(1): must be a relative path, or an address that starts with https:// or http://"
    assert (stopped.code, stopped.err) == (2, f"efficient-attn: {message}\n")
    assert not (here / "other").exists()


def test_publishing_without_runs_ends_in_one_line(tmp_path: Path, command: Command) -> None:
    done = command("publish")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "no runs in results/ here" in done.err
    assert list(tmp_path.iterdir()) == []
