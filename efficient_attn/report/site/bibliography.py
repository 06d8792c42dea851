"""BibTeX entries of claim sources and of the papers named by mechanisms."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from ..claims.ledger import ClaimSource

ARXIV_URL = re.compile(r"https://arxiv\.org/abs/(\d{4}\.\d{4,5})")
ARXIV_MENTION = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
CITATION = re.compile(r"(?P<first>\D+?)(?P<others> et al\.)? (?P<year>\d{4})(?:, \w+)?")


def make_bibtex(source: ClaimSource, name: str) -> str:
    """Return an entry with the name of the source's file as its key; empty for sources that are not papers, and without
    an author and a year."""
    citation = CITATION.fullmatch(source.cite)
    if source.kind != "paper" or not citation:
        return ""
    author, arxiv = _escape(citation["first"]), ARXIV_URL.fullmatch(source.url)
    author += " and others" if citation["others"] else ""
    key = re.sub(r"[^a-z0-9_]", "", name.lower())
    return _format_entry(key, _escape(source.title), author, citation["year"], arxiv[1] if arxiv else "", source.url)


def _format_entry(key: str, title: str, author: str, year: object, arxiv: str, url: str) -> str:
    fields = {"title": f"{{{title}}}", "author": author, "year": year, "eprint": arxiv}
    fields |= {"archivePrefix": "arXiv" if arxiv else "", "url": url}
    return "\n".join([f"@misc{{{key},", *(f"  {name} = {{{text}}}," for name, text in fields.items() if text), "}"])


class Paper(NamedTuple):
    """An entry of ``papers.toml``, whose texts are BibTeX. arxiv: the arXiv number."""

    arxiv: str
    key: str
    authors: str
    title: str
    year: int

    @property
    def bibtex(self) -> str:
        """The BibTeX entry."""
        url = f"https://arxiv.org/abs/{self.arxiv}"
        return _format_entry(self.key, self.title, self.authors, self.year, self.arxiv, url)


def find_papers(text: str) -> list[Paper]:
    """Return the papers in the table whose numbers a text mentions, such as ``arXiv:2006.04768``."""
    papers = _read_papers()
    return [papers[number] for number in dict.fromkeys(ARXIV_MENTION.findall(text)) if number in papers]


@cache
def _read_papers() -> dict[str, Paper]:
    text = (files(__package__ or "") / "papers.toml").read_text(encoding="utf-8")
    return {arxiv: Paper(arxiv, *paper) for arxiv, paper in tomllib.loads(text).items()}


def _escape(text: str) -> str:
    """Escape or remove characters that are special in BibTeX."""
    return re.sub(r"([&%$#_])", r"\\\1", re.sub(r"[\\{}\n]", " ", text))
