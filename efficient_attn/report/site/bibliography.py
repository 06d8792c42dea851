"""Papers as BibTeX: sources of claims, where they say which paper they are, and those that mechanisms name."""

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
    """An entry under the name of the source's file; empty where it is no paper, or does not say whose and when."""
    citation = CITATION.fullmatch(source.cite)
    if source.kind != "paper" or not citation:
        return ""
    fields = {"title": f"{{{_escape(source.title)}}}", "author": _escape(citation["first"]), "year": citation["year"]}
    fields["author"] += " and others" if citation["others"] else ""
    if arxiv := ARXIV_URL.fullmatch(source.url):
        fields |= {"eprint": arxiv[1], "archivePrefix": "arXiv"}
    if source.url:
        fields["url"] = source.url
    lines = (f"  {field} = {{{text}}}," for field, text in fields.items())
    return "\n".join([f"@misc{{{re.sub(r'[^a-z0-9_]', '', name.lower())},", *lines, "}"])


class Paper(NamedTuple):
    """A line of ``papers.toml``, in which text is BibTeX already. arxiv: its number there."""

    arxiv: str
    key: str
    authors: str
    title: str
    year: int

    @property
    def bibtex(self) -> str:
        fields = {"title": f"{{{self.title}}}", "author": self.authors, "year": self.year, "eprint": self.arxiv}
        fields |= {"archivePrefix": "arXiv", "url": f"https://arxiv.org/abs/{self.arxiv}"}
        return "\n".join([f"@misc{{{self.key},", *(f"  {name} = {{{text}}}," for name, text in fields.items()), "}"])


def find_papers(text: str) -> list[Paper]:
    """Those whose numbers a text names, ``arXiv:2006.04768``, as far as the table has them."""
    papers = _read_papers()
    return [papers[number] for number in dict.fromkeys(ARXIV_MENTION.findall(text)) if number in papers]


@cache
def _read_papers() -> dict[str, Paper]:
    text = (files(__package__ or "") / "papers.toml").read_text(encoding="utf-8")
    return {arxiv: Paper(arxiv, *paper) for arxiv, paper in tomllib.loads(text).items()}


def _escape(text: str) -> str:
    """Without what BibTeX would read as its own."""
    return re.sub(r"([&%$#_])", r"\\\1", re.sub(r"[\\{}\n]", " ", text))
