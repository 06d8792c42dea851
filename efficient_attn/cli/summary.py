"""What a run ends with in the terminal: tables of what was measured, and what may have disturbed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from .. import units
from .console import print_table


def show_results(rows: Any, *, trial: Sequence[str] = ()) -> None:
    """The longest length of every mode, and fidelity averaged over layers. rows: a DataFrame; pandas types its columns
    as almost anything. trial: what was changed in the suite, if anything."""
    mark = " (trial)" if trial else ""
    ok = rows[rows.status == "ok"]
    swapped = ok[ok.task == "swap"]
    timed = ok[ok["mode"].notna() & (ok["mode"] != "train") & (ok.task != "swap")]
    for (mode, causal), part in timed.groupby(["mode", "causal"], sort=False):
        longest = part[part.seq_len == part.seq_len.max()]
        title = f"{mode}{', causal' if causal and mode != 'decode' else ''}, length {part.seq_len.max()}{mark}"
        cells = [
            [name, units.duration(r.latency_ms), _speedup(r), *map(units.size, (r.peak_memory_bytes, r.state_bytes))]
            for name, r in zip(_names(longest), longest.itertuples(), strict=True)
        ]
        columns = ["variant", "time", "speedup (95%)", "peak memory", "state"]
        used = [i for i, _ in enumerate(columns) if any(row[i] != units.NONE for row in cells)]
        print_table(title, [columns[i] for i in used], [[row[i] for i in used] for row in cells], right=columns[1:])
    _show_learned(rows, mark)
    asked = ok[ok.task == "retrieval"]
    for inputs, part in asked.groupby([name.rpartition(":")[0] for name in asked.inputs], sort=False):
        _show_retrieval(part, f"{inputs}{mark}")
    for (inputs, length, single), part in swapped.groupby(["inputs", "seq_len", swapped["layer"].notna()], sort=False):
        _show_swapped(part, f"{'one layer of ' if single else ''}{inputs}, {length} tokens{mark}")
    real = ok[ok.task == "fidelity"]
    if len(real):
        means = real.groupby("variant", sort=False)[["relative_error", "cosine_similarity", "missed_mass"]].mean()
        cells = [[str(name), *map(units.number, row)] for name, row in zip(means.index, means.to_numpy(), strict=True)]
        title = f"fidelity on {real.inputs.iloc[0]}, mean over layers (predicting zero has error 1){mark}"
        columns = ["variant", "relative error", "cosine", "missed mass"]
        print_table(title, columns, cells, right=columns[1:])
    if trial:
        print(f"trial, not the suite as it is written: {', '.join(trial)}")


def _show_learned(rows: Any, mark: str) -> None:
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
        cells.append([label, *(texts[0] if texts else units.NONE for texts in scores)])
    columns = ["variant", *(test.heading for test in tests)]
    print_table(f"learned, mean over seeds with its 95% interval{mark}", columns, cells, right=columns[1:])
    for sentence in filter(None, (test.describe_ranking() for test in tests)):
        print(sentence)


SWAPPED = {
    "loss": "loss",
    "swap.divergence": "KL a token",
    "swap.agreement": "same first choice",
    "swap.hidden_error": "error of hidden rows",
    "swap.embedding_cosine": "cosine",
    "speedup": "speedup of a pass",
}


def _show_swapped(rows: Any, title: str) -> None:
    """What swapping loses and saves, mean over segments, and over layers where they were swapped one at a time."""
    measured = [name for name in SWAPPED if name in rows and rows[name].notna().any()]
    means = rows.groupby("variant", sort=False)[measured].mean()
    cells = [[str(name), *map(units.number, row)] for name, row in zip(means.index, means.to_numpy(), strict=True)]
    columns = ["variant", *(SWAPPED[name] for name in measured)]
    print_table(f"swapped into {title}", columns, cells, right=columns[1:])


def _show_retrieval(rows: Any, title: str) -> None:
    """Shares of right answers by kind of needles and length, with their intervals."""
    places = list(dict.fromkeys(zip(rows["retrieval.needles"], rows.seq_len, strict=True)))
    cells = []
    for variant, variant_rows in rows.groupby("variant", sort=False):
        row_by_key = {(r["retrieval.needles"], r.seq_len): r for _, r in variant_rows.iterrows()}
        cells.append([str(variant), *(_share(row_by_key.get(place)) for place in places)])
    columns = ["variant", *(f"{needles} {length}" for needles, length in places)]
    print_table(f"right answers, {title} (chance is 10%)", columns, cells, right=columns[1:])


def _share(row: Any) -> str:
    if row is None:
        return units.NONE
    low, high = (f"{100 * row[f'retrieval.accuracy_{end}']:.0f}" for end in ("low", "high"))
    return f"{row.accuracy:.0%} ({low}{units.TO}{high})"


APART = ("device", "dtype", "threads", "batch", "heads", "kv_heads", "head_dim", "fill")
APART += ("cache", "compiled", "cuda_graph")


def _names(rows: Any) -> list[str]:
    """The variants, with what tells apart the rows of each, say ``gqa (kv_heads=2)``."""
    several = rows.groupby("variant")[list(APART)].transform("nunique") > 1
    names = []
    for variant, place in zip(rows.variant, rows.index, strict=True):
        options = ", ".join(f"{name}={rows.at[place, name]}" for name in APART if several.at[place, name])
        names.append(f"{variant} ({options})" if options else str(variant))
    return names


def _speedup(row: Any) -> str:
    """With its interval; the baseline's own has none."""
    exact = row.speedup_low == row.speedup_high if units.there(row.speedup_low) else True
    return units.ratio(row.speedup) if exact else units.ratio(row.speedup, row.speedup_low, row.speedup_high)


def show_statuses(statuses: Counter[str]) -> None:
    print("cases: " + ", ".join(f"{count} {status}" for status, count in statuses.most_common()))


def show_rounds(rows: Any) -> None:
    """How many rounds were measured, and which share of them something else on the machine disturbed."""
    from ..report.sections.header import NOISY_SHARE, compute_disturbed_share

    share = compute_disturbed_share(rows)
    if share is None:
        return
    message = f"{share:.0%} disturbed by something else on the machine" if share else "none disturbed"
    noisy = "; too many to trust small differences: measure again when it is quiet" if share > NOISY_SHARE else ""
    print(f"rounds: {int(rows.rounds[rows.status == 'ok'].sum())}, {message}{noisy}")
