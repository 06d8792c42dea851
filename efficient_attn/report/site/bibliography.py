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
    """Return an entry keyed by the name of the source's file; empty if it is no paper, or without author and year."""
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
    """An entry of ``papers.toml``, whose texts are BibTeX. arxiv: the arXiv number."""

    arxiv: str
    key: str
    authors: str
    title: str
    year: int

    @property
    def bibtex(self) -> str:
        """The entry for BibTeX."""
        fields = {"title": f"{{{self.title}}}", "author": self.authors, "year": self.year, "eprint": self.arxiv}
        fields |= {"archivePrefix": "arXiv", "url": f"https://arxiv.org/abs/{self.arxiv}"}
        return "\n".join([f"@misc{{{self.key},", *(f"  {name} = {{{text}}}," for name, text in fields.items()), "}"])


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
