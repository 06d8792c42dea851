"""The summary that a run prints: tables of results, and the share of disturbed rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from .. import units
from ..errors import UsageError
from ..report.comparable_quality import QualityConditions
from ..results.compare import compare
from ..results.exchange import read_run
from ..results.rows import OVER_BUDGET
from .console import print_table

FIDELITY_KEYS = ["inputs", "causal", "seq_len"]  # what a table of approximation errors has in common
FIDELITY_COLUMNS = {"relative_error": "relative error", "cosine_similarity": "cosine", "missed_mass": "missed mass"}
SWAP_COLUMNS = {
    "loss": "loss",
    "swap.divergence": "KL a token",
    "swap.agreement": "same most likely token",
    "swap.hidden_error": "error of hidden states",
    "swap.embedding_cosine": "cosine",
    "speedup": "speedup of a pass",
}


def show_results(rows: Any, *, overrides: Sequence[str] = ()) -> None:
    """Print a table for each kind of result. rows: a DataFrame (untyped, because pandas' types are imprecise).
    overrides: of the suite, if any."""
    mark = " (with overrides)" if overrides else ""
    ok_rows = rows[rows.status == "ok"]
    rows_of = {task: ok_rows[ok_rows.task == task] for task in ("swap", "retrieval", "fidelity")}
    timed_rows = ok_rows[ok_rows["mode"].notna() & (ok_rows["mode"] != "train") & (ok_rows.task != "swap")]
    for (mode, causal), group in timed_rows.groupby(["mode", "causal"], sort=False):
        _show_times(group, f"{mode}{', causal' if causal and mode != 'decode' else ''}", mark)
    _explain_missing_speedups(rows)
    _show_trained_scores(rows, mark)
    models = [name.rpartition(":")[0] for name in rows_of["retrieval"].inputs]
    for inputs, group in rows_of["retrieval"].groupby(models, sort=False):
        _show_retrieval(group, f"{inputs}{mark}")
    swap_keys = ["inputs", "seq_len", "causal", rows_of["swap"]["layer"].notna()]
    for (inputs, length, causal, single), group in rows_of["swap"].groupby(swap_keys, sort=False, dropna=False):
        segments = tuple(group["swap.segment"].dropna().unique()) if "swap.segment" in group else ()
        conditions = QualityConditions(inputs, length, causal, segments, "text segment").describe()
        filled = group.dropna(axis="columns", how="all").columns
        columns = {name: heading for name, heading in SWAP_COLUMNS.items() if name in filled}
        _print_means(f"swapped into {'one layer of ' if single else ''}{conditions}{mark}", group, columns)
    for (inputs, causal, length), group in rows_of["fidelity"].groupby(FIDELITY_KEYS, sort=False, dropna=False):
        layers = tuple(group["layer"].dropna().unique())
        conditions = QualityConditions(inputs, length, causal, layers).describe()
        _print_means(f"fidelity: {conditions} (predicting zero has error 1){mark}", group, FIDELITY_COLUMNS)
    if overrides:
        print(f"overridden suite, not its standard settings: {', '.join(overrides)}")


def _show_times(rows: Any, title: str, mark: str) -> None:
    """Times, speedups and memory at the longest length, without empty columns, and the rows' reasons."""
    longest = rows[rows.seq_len == rows.seq_len.max()]
    labels, results = _label_variants(longest), list(longest.itertuples())
    columns = {
        "variant": labels,
        "time": [units.duration(r.latency_ms) for r in results],
        "speedup (95%)": [_format_speedup(r) for r in results],
        "peak memory (with output)": [units.size(r.peak_memory_bytes) for r in results],
        "state": [units.size(r.state_bytes) for r in results],
    }
    filled = {name: texts for name, texts in columns.items() if set(texts) != {units.EMPTY}}
    table = list(zip(*filled.values(), strict=True))
    print_table(f"{title}, length {rows.seq_len.max()}{mark}", list(filled), table, right=list(filled)[1:])
    for label, r in zip(labels, results, strict=True):
        if units.is_present(r.reason):
            print(f"{label}: {r.reason}")


def _explain_missing_speedups(rows: Any) -> None:
    """Print at which configurations there are no speedups because calls exceed the time budget, and what to do."""
    paired = {(r.mode, r.causal, r.seq_len) for r in rows[rows.speedup.notna()].itertuples()}
    late = rows[rows.reason.astype(str).str.startswith(OVER_BUDGET)].itertuples()
    lost = [r for r in late if (r.mode, r.causal, r.seq_len) not in paired]
    if lost:
        places = dict.fromkeys(f"{r.mode}{', causal' if r.causal else ''}, length {r.seq_len}" for r in lost)
        names = f"{', '.join(dict.fromkeys(str(r.variant) for r in lost))}: {lost[0].reason.partition(':')[0]}"
        remedy = "leave out --quick, shorten --seq-len, or raise budget_s in the suite"
        print(f"no speedups for {'; '.join(places)}: {names}; {remedy}")


def _print_means(title: str, rows: Any, columns: Mapping[str, str]) -> None:
    """Print the mean of each column by variant, over layers and segments. columns: their headings by name."""
    means = rows.groupby("variant", sort=False)[list(columns)].mean()
    table = [[str(name), *map(units.number, row)] for name, row in zip(means.index, means.to_numpy(), strict=True)]
    print_table(title, ["variant", *columns.values()], table, right=list(columns.values()))


def _show_trained_scores(rows: Any, mark: str) -> None:
    """Scores of trained models by task, as on the report's page."""
    from ..report import select
    from ..report.sections.trained_scores import filter_trained, list_tests, order_labels

    trained = filter_trained(rows)
    if trained.empty:
        return
    tests = list_tests(select.add_labels(trained.assign(baseline_kv_heads=None)))
    tests = [test for test in tests if test.scored_results]
    table = []
    for label in order_labels(tests):
        scores = [[result.show_score().text for result in test.results if result.label == label] for test in tests]
        table.append([label, *(texts[0] if texts else units.EMPTY for texts in scores)])
    columns = ["variant", *(test.heading for test in tests)]
    print_table(f"learned, mean over seeds with its 95% interval{mark}", columns, table, right=columns[1:])
    for sentence in (text for test in tests for text in test.list_remarks()):
        print(sentence)


def _show_retrieval(rows: Any, title: str) -> None:
    """Shares of correct answers by family of needles and length, with intervals."""
    texts = {}
    for _, row in rows.iterrows():
        low, high = (f"{100 * row[f'retrieval.accuracy_{end}']:.0f}" for end in ("low", "high"))
        setting = f"{row['retrieval.needles']} {row.seq_len}"
        texts[str(row.variant), setting] = f"{row.accuracy:.0%} ({low}{units.INTERVAL_DASH}{high})"
    variants, settings = (list(dict.fromkeys(names)) for names in zip(*texts, strict=True))
    table = [[name, *(texts.get((name, setting), units.EMPTY) for setting in settings)] for name in variants]
    print_table(f"correct answers, {title} (chance is 10%)", ["variant", *settings], table, right=settings)


DISTINGUISHING_COLUMNS = ("device", "dtype", "threads", "batch", "heads", "kv_heads", "head_dim", "fill")
DISTINGUISHING_COLUMNS += ("cache", "compiled", "cuda_graph")


def _label_variants(rows: Any) -> list[str]:
    """The variants, with a distinction where rows of one variant differ: ``gqa (kv_heads=2)``."""
    varies = rows.groupby("variant")[list(DISTINGUISHING_COLUMNS)].transform("nunique") > 1
    names = []
    for variant, index in zip(rows.variant, rows.index, strict=True):
        options = ", ".join(
            f"{name}={rows.at[index, name]}" for name in DISTINGUISHING_COLUMNS if varies.at[index, name]
        )
        names.append(f"{variant} ({options})" if options else str(variant))
    return names


def _format_speedup(row: Any) -> str:
    """A speedup with its interval; the baseline has none."""
    if not units.is_present(row.speedup_low) or row.speedup_low == row.speedup_high:
        return units.ratio(row.speedup)
    return units.ratio(row.speedup, row.speedup_low, row.speedup_high)


def show_statuses(statuses: Counter[str]) -> None:
    """Print how many cases have which status."""
    print("cases: " + ", ".join(f"{count} {status}" for status, count in statuses.most_common()))


def show_rounds(rows: Any) -> None:
    """Print the number of measured rounds, and the share that other programs disturbed."""
    from ..report.sections.header import NOISY_SHARE, compute_disturbed_share

    share = compute_disturbed_share(rows)
    if share is None:
        return
    message = f"{share:.0%} disturbed by other activity on the machine" if share else "none disturbed"
    noisy = "; too many to trust small differences: measure again on an idle machine" if share > NOISY_SHARE else ""
    print(f"rounds: {int(rows.rounds[rows.status == 'ok'].sum())}, {message}{noisy}")


def describe_reproducibility(folder: Path, repeated: Path) -> str | None:
    """How much the results of a run differ from those of a second node, in a sentence; None without such results."""
    if not repeated.is_dir():
        return None
    try:
        changes = [change for change in compare(read_run(folder), read_run(repeated)).changes if change.ratio]
    except UsageError as error:  # of a run that is complete, whose page is still to be written
        return f"reproducibility: not compared: {error}"
    if not changes:
        return None
    differences = sorted(max(change.ratio or 1, 1 / (change.ratio or 1)) - 1 for change in changes)
    significant = sum(change.kind in ("slower", "faster") for change in changes)
    text = f"reproducibility: of {len(changes)} results that a second node measured too, {significant} differ"
    text += f" significantly; the median difference is {median(differences):.1%}, the largest {differences[-1]:.1%}"
    return f"{text} (efficient-attn compare {folder} {repeated})"
