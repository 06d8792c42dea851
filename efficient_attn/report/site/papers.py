"""Sources of claims as BibTeX, where they say which paper they are."""

from __future__ import annotations

import re

from ..claims.ledger import Source

ARXIV = re.compile(r"https://arxiv\.org/abs/(\d{4}\.\d{4,5})")
CITED = re.compile(r"(?P<first>\D+?)(?P<others> et al\.)? (?P<year>\d{4})(?:, \w+)?")


def make_bibtex(source: Source, name: str) -> str:
    """An entry under the name of the source's file; empty where it is no paper, or does not say whose and when."""
    cited = CITED.fullmatch(source.cite)
    if source.kind != "paper" or not cited:
        return ""
    fields = {"title": f"{{{_escape(source.title)}}}", "author": _escape(cited["first"]), "year": cited["year"]}
    fields["author"] += " and others" if cited["others"] else ""
    if found := ARXIV.fullmatch(source.url):
        fields |= {"eprint": found[1], "archivePrefix": "arXiv"}
    if source.url:
        fields["url"] = source.url
    lines = (f"  {field} = {{{text}}}," for field, text in fields.items())
    return "\n".join([f"@misc{{{re.sub(r'[^a-z0-9_]', '', name.lower())},", *lines, "}"])


def _escape(text: str) -> str:
    """Without what BibTeX would read as its own."""
    return re.sub(r"([&%$#_])", r"\\\1", re.sub(r"[\\{}\n]", " ", text))
