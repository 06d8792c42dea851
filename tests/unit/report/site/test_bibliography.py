"""Sources as BibTeX."""

from __future__ import annotations

import ast
import datetime as dt
import re
import unicodedata
from pathlib import Path

import ledgers

import efficient_attn
from efficient_attn.report.claims.ledger import Claim, ClaimSource, load_ledger
from efficient_attn.report.site.bibliography import ARXIV_MENTION, find_papers, make_bibtex

ABS = "https://arxiv.org/abs/"
CLAIM = Claim.model_validate(ledgers.claim_fields({"value": "speedup", "at_least": 2}, date=dt.date(2026, 1, 1)))


def _source(**known: str) -> ClaimSource:
    usual = {
        "title": "Fast & small",
        "cite": "Wang et al. 2020",
        "kind": "paper",
        "url": "https://arxiv.org/abs/2006.04768",
    }
    return ClaimSource.model_validate(usual | known | {"claim": [CLAIM]})


def test_papers_as_entries() -> None:
    assert make_bibtex(_source(), "wang2020").splitlines() == [
        "@misc{wang2020,",
        "  title = {{Fast \\& small}},",
        "  author = {Wang and others},",
        "  year = {2020},",
        "  eprint = {2006.04768},",
        "  archivePrefix = {arXiv},",
        "  url = {https://arxiv.org/abs/2006.04768},",
        "}",
    ]


def test_braces_are_escaped_and_other_kinds_have_no_entry() -> None:
    text = make_bibtex(_source(title="a} @evil{b", url="", cite="Rabe and Staats 2021"), "x}y")
    assert text.startswith("@misc{xy,\n  title = {{a  @evil b}},\n  author = {Rabe and Staats},")
    assert make_bibtex(_source(kind="textbook"), "a") == ""
    assert make_bibtex(_source(cite="the internet"), "a") == ""


def test_all_papers_of_the_ledger_have_an_entry() -> None:
    papers = {entry.file: entry.source for entry in load_ledger() if entry.source.kind == "paper"}
    assert [name for name, source in papers.items() if not make_bibtex(source, name)] == []


def _plain(title: str) -> str:
    """Without LaTeX, accents and what is large or small."""
    letters = unicodedata.normalize("NFD", re.sub(r"[{}]|\\\W?", "", title))
    return "".join(letter for letter in letters if not unicodedata.combining(letter)).lower()


def test_the_ledger_agrees_with_the_table_of_papers() -> None:
    sources = {entry.source.url: entry.source for entry in load_ledger()}
    pairs = [(one, paper) for url, one in sources.items() for paper in find_papers(url.replace(ABS, "arXiv:"))]
    assert len(pairs) > 15
    for source, paper in pairs:
        assert _plain(source.title) == _plain(paper.title)
        first = paper.authors.partition(",")[0].strip("{}")
        assert source.cite.startswith(first)
        assert source.cite.endswith(str(paper.year))


def test_each_paper_in_a_docstring_is_found_once() -> None:
    (linformer, big_bird) = find_papers(
        "Wang, arXiv:2006.04768; Zaheer, arXiv:2007.14062, arXiv:2006.04768; 9999.99999"
    )
    assert big_bird.key == "zaheer2020"
    assert linformer.bibtex.splitlines()[:3] == [
        "@misc{wang2020,",
        "  title = {{Linformer: Self-Attention with Linear Complexity}},",
        "  author = {Wang, Sinong and Li, Belinda Z. and Khabsa, Madian and Fang, Han and Ma, Hao},",
    ]


def test_every_paper_of_the_catalogues_first_paragraphs_is_known() -> None:
    """Read from the sources, for making all mechanisms takes seconds."""
    files = sorted((Path(efficient_attn.__file__).parent / "variants").glob("*/[a-z]*.py"))
    openings = [
        (ast.get_docstring(node) or "").partition("\n\n")[0]
        for f in files
        for node in ast.parse(f.read_text()).body
        if isinstance(node, ast.ClassDef)
    ]
    named = {number for text in openings for number in ARXIV_MENTION.findall(text)}
    assert len(named) > 20
    assert {number for number in named if not find_papers(f"arXiv:{number}")} == set()
