"""Unknown options: the error names an option of the verb that means the same or is spelled almost the same, if any."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from .parser import Parser

SHORT_NAME = 4  # letters, up to which only one edit is accepted instead of two
LONG_SYNONYM = 6  # letters, from which on misspelled synonyms are recognized
REPLACEMENT = 2  # edits: with one, `--file` would be `--fill`
NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")  # a value, as in argparse

# an option, and other names for it; a name may belong to several, of which a verb has one
SYNONYMS: dict[str, str] = {
    "--seq-len": "length lengths seqlen sequence-length n tokens context context-length kv-len max-len seq",
    "--variant": "variants mechanism mechanisms method attention name only",
    "--only": "variant variants mechanism mechanisms method name",
    "--dtype": "precision type data-type",
    "--threads": "cores num-threads n-threads jobs cpus",
    "--jobs": "j n-jobs num-jobs workers num-workers parallel",
    "--batch": "batch-size batchsize b",
    "--heads": "num-heads n-heads query-heads h",
    "--kv-heads": "kv num-kv-heads n-kv-heads key-value-heads groups",
    "--head-dim": "dim d head-size head-width d-head width",
    "--device": "cpu gpu cuda",
    "--causal": "non-causal noncausal bidirectional",
    "--mode": "train training backward forward decode decoding prefill",
    "--max-error": "error relative-error approximation-error",
    "--max-ppl-ratio": "perplexity ppl max-perplexity max-ppl perplexity-ratio ppl-ratio",
    "--min-accuracy": "accuracy",
    "--latency": "time max-latency max-time",
    "--timeout": "time time-limit max-time",
    "--memory": "memory-limit memory-budget max-memory peak-memory ram",
    "--memory-limit": "memory max-memory ram",
    "--shape": "model architecture",
    "--machine": "processor cpu-name host",
    "--only-machine": "machine machine-class",
    "--engine": "scheduler executor",
    "--nodes": "num-nodes n-nodes hosts",
    "--slurm": "partition sbatch",
    "--address": "ray-address cluster",
    "--node-timeout": "heartbeat",
    "--out": "o output output-dir output-file site save",
    "--site": "o out output output-dir",
    "--quick": "fast smoke",
    "--dry-run": "preview simulate",
    "--tolerance": "threshold",
    "--confidence": "alpha significance level",
    "--fail-on-regression": "fail strict",
    "--across-machines": "other-machine",
    "--format": "markdown text html tex",
    "--export": "format",
    "--baseline": "reference",
    "--kind": "type template",
    "--picture": "plot image out output",
}


def check_flags(parser: Parser, arguments: Sequence[str]) -> None:
    """Raise `UsageError` for the first option that does not exist."""
    verb, current = "", parser
    for word in arguments:
        if word in ("--", "-h", "--help"):
            return
        flag = word.partition("=")[0]
        if not _is_flag(word):
            if not verb and word not in parser.verbs:
                return  # an unknown verb, which the parser reports
            verb, current = (verb, current) if verb else (word, parser.verbs[word])
        elif flag not in current.options:
            others = {option for verb in parser.verbs.values() for option in verb.options}
            hint = find_hint(flag, current.options, others=others)
            remedy = f"did you mean {hint!r}?" if hint else f"see '{current.prog} --help'"
            raise UsageError(f"{verb + ': ' if verb else ''}unknown option {flag!r}; {remedy}")


def _is_flag(word: str) -> bool:
    """Whether the parser takes a word for an option; numbers such as -64 and text with spaces are values."""
    return word.startswith("-") and word != "-" and " " not in word and not NEGATIVE_NUMBER.fullmatch(word)


def find_hint(flag: str, options: Sequence[str], *, others: Iterable[str] = ()) -> str | None:
    """The option that a user probably meant, or None. others: options of all verbs, which are no misspellings."""
    name = _normalize(flag)
    by_name = {_normalize(option): option for option in options}
    if name in by_name:
        return by_name[name]
    meant = {synonym: option for option in options for synonym in SYNONYMS.get(option, "").split()}
    if name in meant:
        return meant[name]
    candidates: dict[str, str | None] = {_normalize(other): None for other in others}
    candidates |= by_name | {synonym: option for synonym, option in meant.items() if len(synonym) >= LONG_SYNONYM}
    distance, closest = min((count_edits(name, candidate), candidate) for candidate in candidates)
    most = 1 if min(len(name), len(closest)) <= SHORT_NAME else 2
    return candidates[closest] if distance <= most else None


def count_edits(a: str, b: str) -> int:
    """Edits between two names: a letter inserted, removed or exchanged with the next is one, a replaced letter two."""
    before, row = [0] * (len(b) + 1), list(range(len(b) + 1))
    for i in range(1, len(a) + 1):
        before, row, last = row, [i] + [0] * len(b), before
        for j in range(1, len(b) + 1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + REPLACEMENT * (a[i - 1] != b[j - 1]))
            if i > 1 and j > 1 and a[i - 2 : i] == b[j - 1] + b[j - 2]:
                row[j] = min(row[j], last[j - 2] + 1)
    return row[-1]


def _normalize(flag: str) -> str:
    return flag.lstrip("-").lower().replace("_", "-")
