"""Write docs/reference/torch-features.md: the torch features that each mechanism supports, by testing them.

    python suites/trials/torch_features.py [SPEC...]

The table has a row for each spec and a column for each feature. With specs, their table is printed and no file is
written. A probe that raises is shown as `fails`, and the exit code is then 1.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from probes import PROBES

import efficient_attn as ea
from efficient_attn.testing import Check, Subject, run_check
from efficient_attn.testing.checks import dropout, list_checks, persistence

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "torch-features.md"
COMMAND = "python suites/trials/torch_features.py"
FAILURE_PREFIX = "fails: "
OPTION_SPECS = (  # options that select other code than the default
    "full:backend=cpp",
    "full:backend=dense",
    "gqa:kv_heads=2",
    "mla:backend=absorbed",
    "mla:backend=cpp",
    "sliding_window:backend=blocks",
    "sliding_window:window=3|strided:stride=7",
    "linear:backend=cpp",
    "performer:kind=trigonometric",
    "random_feature:gated=true",
    "retention:normalised=true",
    "linformer:share=none",
)
TEXT = """# Torch features of each mechanism

Torch features that each mechanism supports, tested on the CPU with torch {torch}. `{command}` writes this page.

{table}

{legend}
"""


def probe_pickle(spec: str) -> str:
    """`pickle`, `torch.save` of the module and `copy.deepcopy` preserve all bits, also of decode states."""
    return _run_checks(spec, list_checks(persistence))


def probe_dropout(spec: str) -> str:
    """`attn.dropout = p` drops weights in training; if refused, setting it raises `UnsupportedError`."""
    answer = _run_checks(spec, list_checks(dropout))
    return answer if Subject(spec).traits.dropout else "refused"


def _run_checks(spec: str, checks: Iterable[Check]) -> str:
    """`yes` if all checks pass that apply; the first that fails raises `AssertionError`."""
    subject = Subject(spec)
    for check in checks:
        outcome = run_check(check, subject)
        assert outcome.status != "failed", f"{check.name}: {outcome.reason}"
    return "yes"


ALL_PROBES: dict[str, Callable[[str], str]] = {**PROBES, "pickle": probe_pickle, "dropout": probe_dropout}


def run_probe(probe: Callable[[str], str], spec: str) -> str:
    """The result of a probe, or its exception in one line."""
    try:
        return probe(spec)
    except Exception as error:
        return f"{FAILURE_PREFIX}{type(error).__name__}: {' '.join(str(error).split())}"[:160]


def make_table(specs: Iterable[str], probes: Mapping[str, Callable[[str], str]]) -> str:
    """A Markdown table with a row for each spec and a column for each probe."""
    rows = [["spec", *(name.replace("_", " ") for name in probes)], ["---"] * (1 + len(probes))]
    rows += [[f"`{spec}`", *(run_probe(probe, spec) for probe in probes.values())] for spec in specs]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)


def make_legend(probes: Mapping[str, Callable[[str], str]]) -> str:
    """The meaning of each column: the first paragraph of its probe's docstring."""
    descriptions = {name: (inspect.getdoc(probe) or "").partition("\n\n")[0] for name, probe in probes.items()}
    return "\n".join(f"- {name.replace('_', ' ')}: {' '.join(text.split())}" for name, text in descriptions.items())


def main(specs: Sequence[str] = (), probes: Mapping[str, Callable[[str], str]] = ALL_PROBES) -> int:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    table = make_table(specs or (*ea.names(), *OPTION_SPECS), probes)
    if specs:
        print(table)
    else:
        version = torch.__version__.partition("+")[0]
        text = TEXT.format(torch=version, command=COMMAND, table=table, legend=make_legend(probes))
        PAGE.write_text(text, encoding="utf-8")
        print(f"{len(table.splitlines()) - 2} specs: {PAGE}")
    return 1 if FAILURE_PREFIX in table else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
