"""The summary that a run prints: tables of results, and disturbances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from .. import units
from .console import print_table


def show_results(rows: Any, *, overrides: Sequence[str] = ()) -> None:
    """Times at the longest length of every mode, and approximation errors averaged over layers. rows: a DataFrame
    (untyped, because pandas' types are imprecise). overrides: of the suite, if any."""
    mark = " (with overrides)" if overrides else ""
    ok_rows = rows[rows.status == "ok"]
    swap_rows = ok_rows[ok_rows.task == "swap"]
    timed_rows = ok_rows[ok_rows["mode"].notna() & (ok_rows["mode"] != "train") & (ok_rows.task != "swap")]
    for (mode, causal), group in timed_rows.groupby(["mode", "causal"], sort=False):
        longest = group[group.seq_len == group.seq_len.max()]
        title = f"{mode}{', causal' if causal and mode != 'decode' else ''}, length {group.seq_len.max()}{mark}"
        cells = [
            [
                name,
                units.duration(r.latency_ms),
                _format_speedup(r),
                *map(units.size, (r.peak_memory_bytes, r.state_bytes)),
            ]
            for name, r in zip(_label_variants(longest), longest.itertuples(), strict=True)
        ]
        columns = ["variant", "time", "speedup (95%)", "peak memory", "state"]
        filled = [i for i, _ in enumerate(columns) if any(row[i] != units.EMPTY for row in cells)]
        print_table(title, [columns[i] for i in filled], [[row[i] for i in filled] for row in cells], right=columns[1:])
    _show_trained_scores(rows, mark)
    retrieval_rows = ok_rows[ok_rows.task == "retrieval"]
    for inputs, group in retrieval_rows.groupby(
        [name.rpartition(":")[0] for name in retrieval_rows.inputs], sort=False
    ):
        _show_retrieval(group, f"{inputs}{mark}")
    for (inputs, length, single), group in swap_rows.groupby(
        ["inputs", "seq_len", swap_rows["layer"].notna()], sort=False
    ):
        _show_swap(group, f"{'one layer of ' if single else ''}{inputs}, {length} tokens{mark}")
    fidelity_rows = ok_rows[ok_rows.task == "fidelity"]
    if len(fidelity_rows):
        means = fidelity_rows.groupby("variant", sort=False)[
            ["relative_error", "cosine_similarity", "missed_mass"]
        ].mean()
        cells = [[str(name), *map(units.number, row)] for name, row in zip(means.index, means.to_numpy(), strict=True)]
        title = f"fidelity on {fidelity_rows.inputs.iloc[0]}, mean over layers (predicting zero has error 1){mark}"
        columns = ["variant", "relative error", "cosine", "missed mass"]
        print_table(title, columns, cells, right=columns[1:])
    if overrides:
        print(f"overridden suite, not its standard settings: {', '.join(overrides)}")


def _show_trained_scores(rows: Any, mark: str) -> None:
    """Scores of models that were trained, by task, as the report's page has them."""
    from ..report import select
    from ..report.sections.trained_scores import filter_trained, list_tests, order_labels

    trained = filter_trained(rows)
    if trained.empty:
        return
    tests = [
        test for test in list_tests(select.add_labels(trained.assign(baseline_kv_heads=None))) if test.scored_results
    ]
    cells = []
    for label in order_labels(tests):
        scores = [[result.show_score().text for result in test.results if result.label == label] for test in tests]
        cells.append([label, *(texts[0] if texts else units.EMPTY for texts in scores)])
    columns = ["variant", *(test.heading for test in tests)]
    print_table(f"learned, mean over seeds with its 95% interval{mark}", columns, cells, right=columns[1:])
    for sentence in filter(None, (test.describe_ranking() for test in tests)):
        print(sentence)


SWAP_COLUMNS = {
    "loss": "loss",
    "swap.divergence": "KL a token",
    "swap.agreement": "same first choice",
    "swap.hidden_error": "error of hidden rows",
    "swap.embedding_cosine": "cosine",
    "speedup": "speedup of a pass",
}


def _show_swap(rows: Any, title: str) -> None:
    """Change in perplexity and time with swapped attention: mean over segments, and over layers if swapped one at a
    time."""
    measured = [name for name in SWAP_COLUMNS if name in rows and rows[name].notna().any()]
    means = rows.groupby("variant", sort=False)[measured].mean()
    cells = [[str(name), *map(units.number, row)] for name, row in zip(means.index, means.to_numpy(), strict=True)]
    columns = ["variant", *(SWAP_COLUMNS[name] for name in measured)]
    print_table(f"swapped into {title}", columns, cells, right=columns[1:])


def _show_retrieval(rows: Any, title: str) -> None:
    """Shares of correct answers by family of needles and length, with intervals."""
    settings = list(dict.fromkeys(zip(rows["retrieval.needles"], rows.seq_len, strict=True)))
    cells = []
    for variant, variant_rows in rows.groupby("variant", sort=False):
        row_by_key = {(r["retrieval.needles"], r.seq_len): r for _, r in variant_rows.iterrows()}
        cells.append([str(variant), *(_format_accuracy(row_by_key.get(setting)) for setting in settings)])
    columns = ["variant", *(f"{needles} {length}" for needles, length in settings)]
    print_table(f"correct answers, {title} (chance is 10%)", columns, cells, right=columns[1:])


def _format_accuracy(row: Any) -> str:
    if row is None:
        return units.EMPTY
    low, high = (f"{100 * row[f'retrieval.accuracy_{end}']:.0f}" for end in ("low", "high"))
    return f"{row.accuracy:.0%} ({low}{units.INTERVAL_DASH}{high})"


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
    is_baseline = row.speedup_low == row.speedup_high if units.is_present(row.speedup_low) else True
    return units.ratio(row.speedup) if is_baseline else units.ratio(row.speedup, row.speedup_low, row.speedup_high)


def show_statuses(statuses: Counter[str]) -> None:
    """Print how many cases have which status."""
    print("cases: " + ", ".join(f"{count} {status}" for status, count in statuses.most_common()))


def show_rounds(rows: Any) -> None:
    """The number of measured rounds, and the share that other programs disturbed."""
    from ..report.sections.header import NOISY_SHARE, compute_disturbed_share

    share = compute_disturbed_share(rows)
    if share is None:
        return
    message = f"{share:.0%} disturbed by other activity on the machine" if share else "none disturbed"
    noisy = "; too many to trust small differences: measure again when it is quiet" if share > NOISY_SHARE else ""
    print(f"rounds: {int(rows.rounds[rows.status == 'ok'].sum())}, {message}{noisy}")
