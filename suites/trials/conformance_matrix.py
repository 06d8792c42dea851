"""Write docs/reference/conformance.md: which laws each implementation satisfies, ours and those of other libraries.

    python suites/trials/conformance_matrix.py [SPEC...]

The table has a row for each implementation and a column for each group of checks; below it are the failures, with the
smallest failing input that was found. With specs, their table is printed and no file is written. An implementation is
checked in a process of its own, two at a time, which takes about half an hour.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch

import efficient_attn as ea
from efficient_attn.errors import UnsupportedError, UsageError
from efficient_attn.peers import PEERS
from efficient_attn.registry import load_plugin
from efficient_attn.testing import Outcome, Subject, run_checks
from efficient_attn.testing.checks import FIRST, LATER, list_checks

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "conformance.md"
COMMAND = "python suites/trials/conformance_matrix.py"
GROUPS: dict[str, ModuleType] = {module.__name__.rpartition(".")[2]: module for module in (*FIRST, *LATER)}
NONE = "-"  # no check of a group applies, or none has a size that is not refused
WORKERS = 2  # processes at a time
REASON_LENGTH = 400
TEXT = """# Conformance of each implementation

The {checks} checks of `efficient-attn check` in {groups} groups, on the CPU in float64 (float32 where that is refused)
with torch {torch}, seed 0: how many an implementation passes, how many have calls of sizes that it refuses, and how
many fail. Checks apply to what it declares (its `traits`): a library that declares no padding is not asked for it.
A dash is no pass: no check of the group applies, or the implementation refuses the sizes of all that would.
`peer_reformer` and `peer_nystromformer` refuse nearly all sizes, so that little of them is checked here.
`{command}` writes this page.

{table}

## Failures and refusals

{failures}

## Groups

{legend}
"""


class Result(NamedTuple):
    """Counts ``(passed, refused, failed)`` by group; refusals and failures as ``(check, reason)``; absent: why it was
    not checked at all."""

    counts: dict[str, tuple[int, int, int]]
    refusals: list[tuple[str, str]]
    failures: list[tuple[str, str]]
    absent: str = ""


def examine(spec: str) -> Result:
    """Run all checks of a spec in this process, in float32 where it refuses float64."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for plugin in dict.fromkeys(peer.plugin for peer in PEERS):
        load_plugin(plugin)
    try:
        dtype = torch.float32 if Subject(spec).attn.why_not_dtype(torch.float64) else torch.float64
        outcomes = run_checks(spec, dtype=dtype)
    except (UsageError, UnsupportedError) as error:
        return Result({}, [], [], str(error))
    statuses = {o.check.name: "refused" if _refuses(o) else o.status for o in outcomes}
    counts = {}
    for name, module in GROUPS.items():
        found = [statuses.get(check.name) for check in list_checks(module)]
        counts[name] = found.count("passed"), found.count("refused"), found.count("failed")
    failed = [o for o in outcomes if o.status == "failed"]
    refusals, failures = ([(o.check.name, o.reason) for o in failed if _refuses(o) == x] for x in (True, False))
    return Result(counts, refusals, failures)


def _refuses(outcome: Outcome) -> bool:
    """Whether a check failed because the implementation does not take its sizes."""
    return outcome.status == "failed" and "UnsupportedError" in outcome.reason


def make_table(results: dict[str, Result]) -> str:
    """A Markdown table with a row for each implementation and a column for each group."""
    rows = [["implementation", *(name.replace("_", " ") for name in GROUPS)], ["---"] * (1 + len(GROUPS))]
    for spec, result in results.items():
        cells = [_write_cell(*result.counts[name]) for name in GROUPS] if result.counts else [NONE] * len(GROUPS)
        rows.append([f"`{spec}`", *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _write_cell(passed: int, refused: int, failed: int) -> str:
    numbers = (passed, ""), (refused, " refused"), (failed, " **fail**")
    return ", ".join(f"{number}{word}" for number, word in numbers if number) or NONE


def list_failures(results: dict[str, Result]) -> str:
    """A line for each failure, and one for each implementation that refuses sizes or could not be checked."""
    lines = []
    for spec, result in results.items():
        if result.absent:
            lines.append(f"- `{spec}` was not checked: {_shorten(result.absent)}")
        lines += [f"- `{spec}`, {check}: {_shorten(reason)}" for check, reason in result.failures]
        if result.refusals:
            check, reason = result.refusals[0]
            lines.append(
                f"- `{spec}` refuses calls of {len(result.refusals)} checks, the first of {check}: {_shorten(reason)}"
            )
    return "\n".join(lines) or "None."


def _shorten(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    return text[:REASON_LENGTH] + "..." * (len(text) > REASON_LENGTH)


def make_legend() -> str:
    """The meaning of each column: the first sentence of its module, and the names of its checks."""
    lines = []
    for name, module in GROUPS.items():
        sentence = " ".join((inspect.getdoc(module) or "").split()).partition(". ")[0].rstrip(".")
        checks = ", ".join(check.name for check in list_checks(module))
        lines.append(f"- {name.replace('_', ' ')}: {sentence} ({checks})")
    return "\n".join(lines)


def list_specs() -> list[str]:
    """All mechanisms, and those of other libraries."""
    return [*ea.names(), *(peer.name for peer in PEERS)]


def examine_all(specs: Iterable[str]) -> dict[str, Result]:
    """Each in a process of its own, so that a library's settings stay there."""
    specs = list(specs)
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        results = {}
        for spec, result in zip(specs, pool.map(examine, specs), strict=True):
            results[spec] = result
            print(f"{spec}: {len(result.failures)} failures {result.absent}", file=sys.stderr, flush=True)
        return results


def main(specs: Sequence[str] = ()) -> int:
    results = examine_all(specs or list_specs())
    table, failures = make_table(results), list_failures(results)
    if specs:
        print(f"{table}\n\n{failures}")
        return 0
    version, checks = torch.__version__.partition("+")[0], len(list_checks(*GROUPS.values()))
    text = TEXT.format(
        checks=checks,
        groups=len(GROUPS),
        torch=version,
        command=COMMAND,
        table=table,
        failures=failures,
        legend=make_legend(),
    )
    PAGE.write_text(text, encoding="utf-8")
    print(f"{len(results)} implementations: {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
