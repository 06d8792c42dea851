"""What makes the generated pages: links, descriptions from docstrings, outputs of the notebook, and what is missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import columns
import hooks
import mechanisms
import notebook_page
import pytest
import python_api
import suite_files
from links import DOCS, ROOT, rewrite_links
from markdown_text import make_table, read_descriptions
from nbformat import v4
from pydantic import BaseModel

import efficient_attn as ea

PAGE = DOCS / "how-to/measure.md"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](select-cases.md)", "[a](select-cases.md)"),
        ("[a](../tutorial/first-run.ipynb)", "[a](../tutorial/first-run.md)"),
        ("[a](../../ARCHITECTURE.md#layers)", "[a](../project/architecture.md#layers)"),
        ("[a](../../results/swap/report.md)", "[a](../results/swap/report.md)"),
        ("[a](../../README.md)", "[a](../README.md)"),
        ("[a](../../efficient_attn/results/rows.py)", "[a](../reference/columns.md)"),
        ("see [LICENSE](../../LICENSE).", "see LICENSE."),  # a file without a page
        ("[a](https://example.org/x.md) [b](#here)", "[a](https://example.org/x.md) [b](#here)"),
        ("[a](missing.md)", "[a](missing.md)"),  # mkdocs reports it
        ("```python\nx[0](y.md)\n```", "```python\nx[0](y.md)\n```"),
        ("![`a|b` \\[c\\]](../perplexity.png)", "![`a|b` \\[c\\]](../perplexity.png)"),
    ],
)
def test_links_lead_to_pages(text: str, expected: str) -> None:
    assert rewrite_links(text, source=PAGE, uri="how-to/measure.md") == expected


def test_links_of_pages_from_outside_docs() -> None:
    text = rewrite_links("[a](docs/concepts/measuring.md)", source=ROOT / "CHANGELOG.md", uri="project/changelog.md")
    assert text == "[a](../concepts/measuring.md)"
    picture = rewrite_links("![](plots/x.png)", source=ROOT / "results/swap/report.md", uri="results/swap/report.md")
    assert picture == "![](plots/x.png)"


def test_descriptions_are_read_from_docstrings() -> None:
    doc = """A row.

    a, b: two of them; c: ``x: y``, which
    is long. other: is no field. not_a: neither.
    """
    assert read_descriptions(doc, ["a", "b", "c", "d"]) == {
        **dict.fromkeys("ab", "two of them"),
        "c": "`x: y`, which is long. other: is no field. not_a: neither",
    }
    assert read_descriptions("", ["a"]) == {}


def test_pipes_in_tables_are_escaped() -> None:
    assert make_table(["a"], [["`x|y`"]]).splitlines()[-1] == r"| `x\|y` |"


def test_a_mechanism_without_a_formula_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanisms, "_read_formulas", lambda: {"sparse": {}, "families": {}})
    with pytest.raises(ValueError, match=r"formulas.toml: no formula of bigbird in \[sparse\]"):
        mechanisms._render_formula(ea.info("bigbird"))


def test_a_column_without_a_description_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(columns.COLUMN_TYPES, "zz_new", "int")
    with pytest.raises(ValueError, match=r"columns.toml: no description of the columns zz_new"):
        columns.render_page()


def test_a_key_without_a_description_is_an_error() -> None:
    class Keys(BaseModel):
        """known: this one."""

        known: int = 1
        unknown: int = 2

    with pytest.raises(ValueError, match=r"suite_keys.toml: no description of unknown in \[Keys\]"):
        suite_files._describe_model(Keys)


def test_a_public_name_in_no_group_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(python_api.GROUPS, "Errors", ("UsageError",))
    with pytest.raises(ValueError, match="UnsupportedError"):
        python_api.render_page()


def _render_notebook(tmp_path: Path, *outputs: Any) -> dict[str, Any]:
    cell = v4.new_code_cell("x", outputs=list(outputs), id="cell")
    book = v4.new_notebook(cells=[v4.new_markdown_cell("# Title"), cell])
    (tmp_path / "book.ipynb").write_text(v4.writes(book))
    return dict(notebook_page.render_files(tmp_path / "book.ipynb", "tutorial/book.md"))


def test_outputs_of_the_notebook(tmp_path: Path) -> None:
    files = _render_notebook(
        tmp_path,
        v4.new_output("stream", name="stdout", text="\x1b[31mred\x1b[0m\n"),
        v4.new_output("stream", name="stderr", text="/root/secret.py: a warning"),
        v4.new_output("display_data", {"image/png": "iVBORw0="}),
        v4.new_output("display_data", {"text/html": '<style>x</style><table border="1" class="dataframe"></table>'}),
    )
    text = files["tutorial/book.md"]
    assert files["tutorial/cell-2.png"].startswith(b"\x89PNG")
    assert '```text title="Output"\nred\n```' in text
    assert "![Output of the cell above](cell-2.png)" in text
    assert "\n<table></table>\n" in text
    assert not [word for word in ("secret", "style", "\x1b") if word in text]


def test_colours_are_those_of_reports() -> None:
    style = hooks.STYLE_SHEET.read_text(encoding="utf-8")
    colours = hooks.convert_colours(style)
    light, dark = colours.split('[data-md-color-scheme="slate"]')
    pages = re.findall(r"--page: \S+;", style)
    assert pages[0] in light
    assert pages[1] in dark
    assert pages[0] != pages[1]


def test_warnings_of_the_build_are_errors() -> None:
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "\nstrict: true\n" in settings
    assert "anchors: warn" in settings
    assert "omitted_files: warn" in settings
