"""BibTeX entries of claim sources and of the papers named by mechanisms."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from ..claims.ledger import ClaimSource

ARXIV_ADDRESS = "https://arxiv.org/abs/"
ARXIV_MENTION = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
CITATION = re.compile(r"(?P<first>\D+?)(?P<others> et al\.)? (?P<year>\d{4})(?:, \w+)?")


class Paper(NamedTuple):
    """A paper, whose texts are BibTeX. arxiv: the arXiv number, if there is one."""

    arxiv: str
    key: str
    authors: str
    title: str
    year: int
    url: str

    @property
    def bibtex(self) -> str:
        """The BibTeX entry."""
        fields = {"title": f"{{{self.title}}}", "author": self.authors, "year": self.year, "eprint": self.arxiv}
        fields |= {"archivePrefix": "arXiv" if self.arxiv else "", "url": self.url}
        lines = [f"  {name} = {{{text}}}," for name, text in fields.items() if text]
        return "\n".join([f"@misc{{{self.key},", *lines, "}"])


def make_bibtex(source: ClaimSource, name: str) -> str:
    """Return an entry with the name of the source's file as its key; empty for sources that are not papers, and without
    an author and a year."""
    citation = CITATION.fullmatch(source.cite)
    if source.kind != "paper" or not citation:
        return ""
    arxiv = source.url.removeprefix(ARXIV_ADDRESS) if source.url.startswith(ARXIV_ADDRESS) else ""
    authors = _escape(citation["first"]) + (" and others" if citation["others"] else "")
    key = re.sub(r"[^a-z0-9_]", "", name.lower())
    return Paper(arxiv, key, authors, _escape(source.title), int(citation["year"]), source.url).bibtex


def find_papers(text: str) -> list[Paper]:
    """Return the papers of ``papers.toml`` whose numbers a text mentions, such as ``arXiv:2006.04768``."""
    papers, numbers = _read_papers(), dict.fromkeys(ARXIV_MENTION.findall(text))
    return [Paper(number, *papers[number], f"{ARXIV_ADDRESS}{number}") for number in numbers if number in papers]


@cache
def _read_papers() -> dict[str, tuple[str, str, str, int]]:
    return tomllib.loads((files(__package__ or "") / "papers.toml").read_text(encoding="utf-8"))


def _escape(text: str) -> str:
    """Escape or remove characters that are special in BibTeX."""
    return re.sub(r"([&%$#_])", r"\\\1", re.sub(r"[\\{}\n]", " ", text))
