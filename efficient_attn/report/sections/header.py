"""Start of a report: title, summary of what was measured, and notices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...results.overrides import gather_overrides
from ...results.store import describe_older_protocol
from .. import formatting, select
from ..gather import Frame, ReportData

MAX_LISTED_LINES = 6  # damaged lines
MAX_JOINED_NAMES = 3  # processors, GPUs or torch versions in one line
NOISY_SHARE = 0.2  # share of disturbed rounds above which a page starts with a notice


def make_title(data: ReportData) -> str:
    """The title of a report, from those of its suites."""
    titles = dict.fromkeys(str((s.get("suite") or {}).get("title") or "") for s in data.sessions)
    titles_or_suites = [title for title in titles if title] or [str(s) for s in data.rows["suite"].dropna().unique()]
    more = " and more" if len(titles_or_suites) > 3 else ""
    return f"{'; '.join(titles_or_suites[:3])}{more}" or "Attention mechanisms compared"


def describe_overrides(data: ReportData) -> str:
    """Runs whose suites were overridden, and how; empty for none."""
    overrides_by_run = {run: gather_overrides(sessions) for run, sessions in _group_by_run(data).items()}
    texts = [f"{run} ran with {' '.join(overrides)}" for run, overrides in overrides_by_run.items() if overrides]
    return f"Not a result of the suite as written: {'; '.join(texts)}." if texts else ""


def describe_older_runs(data: ReportData) -> str:
    """Runs of an earlier protocol; empty for none."""
    note_by_run = {run: describe_older_protocol(*sessions) for run, sessions in _group_by_run(data).items()}
    texts = [f"{run} ({note})" for run, note in note_by_run.items() if note]
    return f"Not comparable with present results: {', '.join(texts)}." if texts else ""


def _group_by_run(data: ReportData) -> dict[str, list[dict[str, Any]]]:
    runs = dict.fromkeys(str(session["run"]) for session in data.sessions)
    return {run: [session for session in data.sessions if str(session["run"]) == run] for run in runs}


def describe_environment(rows: Frame, data: ReportData) -> str:
    """Dates, processors, GPUs, torch versions and noise, in one line."""
    days = sorted({str(session.get("started") or "")[:10] for session in data.sessions} - {""})
    environments = [(s.get("environment") or {}) for s in data.sessions]
    parts = [
        " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "",
        _join_few(str(e["cpu"]) for e in environments if e.get("cpu")),
        _join_few(str(gpu) for e in environments for gpu in e.get("gpus") or () if isinstance(gpu, str)),
        _join_few(f"torch {e['torch']}" for e in environments if e.get("torch")),
    ]
    share = compute_disturbed_share(rows)
    if share is not None:
        parts.append(f"disturbed in {share:.0%} of the rounds" if share > NOISY_SHARE else "an idle machine")
    return " \u00b7 ".join(filter(None, parts))


def _join_few(names: Iterable[str]) -> str:
    """Join distinct names; if there are many, the first ones and the number of others."""
    all_names = list(dict.fromkeys(names))
    most = MAX_JOINED_NAMES if len(all_names) <= MAX_JOINED_NAMES else MAX_JOINED_NAMES - 1
    return formatting.join_words(formatting.shorten_list(all_names, most))


def summarise_rows(rows: Frame, cpus: dict[str, str]) -> str:
    """Number of cases, variants and machines, and of results and failures."""
    if rows.empty:
        return "The run holds no rows yet."
    machines, ok, failed = rows["machine"].nunique(), rows[rows["status"] == "ok"], rows[rows["status"] != "ok"]
    devices = sorted(ok["device"].dropna().unique())
    cases, variants = len(rows), rows["variant"].nunique()
    text = f"{formatting.format_count(cases, 'case')} of {formatting.format_count(variants, 'variant')}"
    text += f" on {formatting.format_count(machines, 'machine')}" if machines else ""
    text += f" ({', '.join(devices)})" if devices else ""
    text += f": {len(ok)} gave a result"
    status_counts = [f"{count} {status}" for status, count in failed["status"].value_counts(sort=False).items()]
    text += f", {len(failed)} did not ({', '.join(status_counts)}); see the reasons below." if status_counts else "."
    share = compute_disturbed_share(ok)
    noise = f" Other processes disturbed {share:.0%} of the rounds; the intervals include that." if share else ""
    return text + _describe_configs(ok, cpus) + noise


def _describe_configs(rows: Frame, cpus: dict[str, str]) -> str:
    """Dtypes, batches, heads and machines of the rows; empty if unknown."""
    dtypes, heads, machines = (rows[name].dropna().unique().tolist() for name in ("dtype", "heads", "machine"))
    batches = select.find_batches(rows)
    parts = [
        formatting.join_words(map(str, dtypes)),
        f"batch {formatting.join_words(map(str, batches))}" if batches else "",
        f"{formatting.join_words(map(str, sorted(heads)))} head{'' if heads == [1] else 's'}" if heads else "",
        formatting.join_words(formatting.format_machine(machine, cpus) for machine in machines),
    ]
    conditions = ", ".join(filter(None, parts))
    return f" The numbers hold for {conditions}." if conditions else ""


def compute_disturbed_share(rows: Frame) -> float | None:
    """Share of rounds disturbed by other processes; None without rounds."""
    ok = rows[rows["status"] == "ok"]
    rounds = ok["rounds"].sum()
    return float(ok["contaminated"].sum() / rounds) if rounds else None


def describe_noise(rows: Frame, sessions: Sequence[Mapping[str, Any]]) -> str:
    """Warning that the machine was noisy, by its rounds or by its check at the start; empty if it was not."""
    share = compute_disturbed_share(rows) or 0.0
    reasons = [f"other processes disturbed {share:.0%} of the rounds"] if share > NOISY_SHARE else []
    starts = dict.fromkeys(warning for s in sessions if (warning := (s.get("readiness") or {}).get("warning")))
    reasons += [f"at the start: {'; '.join(map(str, starts))}"] if starts else []
    text = f"Measured on a noisy machine ({'; '.join(reasons)}). Small differences may be caused by that."
    return text if reasons else ""


def describe_damage(locations: Sequence[str]) -> str:
    """Number and locations of damaged lines, which the report omits; empty for none."""
    listed = formatting.shorten_list(locations, MAX_LISTED_LINES)
    were = "line was" if len(locations) == 1 else "lines were"
    text = f"{len(locations)} damaged {were} left out of this report: {formatting.join_words(listed)}."
    return text if locations else ""
