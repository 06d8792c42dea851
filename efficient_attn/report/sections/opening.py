"""What stands at a report's start: its title, how much was measured, and what of it was damaged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...results.trials import gather_overrides
from .. import words
from ..gather import Frame, Gathered

MOST_NAMED = 6  # damaged lines
MOST_JOINED = 3  # processors and versions of torch, in one line
NOISY = 0.2  # of the rounds: when more of them were disturbed, a page says so before anything else


def make_title(found: Gathered) -> str:
    titles = dict.fromkeys(str((s.get("suite") or {}).get("title") or "") for s in found.sessions)
    named = [title for title in titles if title] or [str(s) for s in found.rows["suite"].dropna().unique()]
    return "; ".join(named[:3]) + (" and more" if len(named) > 3 else "") or "Attention mechanisms compared"


def tell_trials(found: Gathered) -> str:
    """Which runs are trials, and what was changed in their suites; empty for none."""
    told = []
    for run in dict.fromkeys(session["run"] for session in found.sessions):
        changed = gather_overrides(session for session in found.sessions if session["run"] == run)
        told += [f"{run} ran with {' '.join(changed)}"] if changed else []
    return f"A trial, not a result of the suite as it is written: {'; '.join(told)}." if told else ""


def tell_place(rows: Frame, found: Gathered) -> str:
    """When, on which processors and with which torch, and whether the machine was quiet, in one line."""
    days = sorted({str(session.get("started") or "")[:10] for session in found.sessions} - {""})
    said = [days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"] if days else []
    named = [(s.get("environment") or {}) for s in found.sessions]
    said += [_join_few(dict.fromkeys(str(e["cpu"]) for e in named if e.get("cpu")))]
    gpus = dict.fromkeys(str(g) for e in named for g in e.get("gpus") or () if isinstance(g, str))
    said += [_join_few(gpus), _join_few(dict.fromkeys(f"torch {e['torch']}" for e in named if e.get("torch")))]
    share = find_disturbed(rows)
    if share is not None:
        said.append(f"disturbed in {share:.0%} of the rounds" if share > NOISY else "a quiet machine")
    return " \u00b7 ".join(filter(None, said))


def _join_few(names: Iterable[str]) -> str:
    """All of few names, or the first and how many more."""
    known = list(names)
    return words.join(known if len(known) <= MOST_JOINED else [*known[: MOST_JOINED - 1], f"{len(known) - 2} more"])


def sum_up(rows: Frame, cpus: dict[str, str]) -> str:
    """How much was measured, of what and where, and how much was not."""
    count, lost = rows["status"].value_counts(), rows[rows["status"] != "ok"]
    if rows.empty:
        return "The run holds no rows yet."
    machines, ok = rows["machine"].nunique(), rows[rows["status"] == "ok"]
    devices = sorted(ok["device"].dropna().unique())
    text = f"{words.count(len(rows), 'case')} of {words.count(rows['variant'].nunique(), 'variant')}"
    text += f" on {words.count(machines, 'machine')}" if machines else ""
    text += f" ({', '.join(devices)})" if devices else ""
    text += f": {len(ok)} gave a result"
    others = [f"{count[s]} {s}" for s in lost["status"].unique()]
    text += f", {len(lost)} did not ({', '.join(others)}); the reasons are below." if others else "."
    return text + _tell_place(ok, cpus) + _tell_disturbed(ok)


def _tell_place(rows: Frame, cpus: dict[str, str]) -> str:
    """The processors, dtypes, batches and heads that the numbers hold for; empty where nothing is known of them."""
    known = {name: rows[name].dropna().unique().tolist() for name in ("dtype", "batch", "heads", "machine")}
    said = [words.join(map(str, known["dtype"]))]
    said += [f"batch {words.join(map(str, sorted(known['batch'])))}"] if known["batch"] else []
    heads = sorted(known["heads"])
    said += [f"{words.join(map(str, heads))} head{'' if heads == [1] else 's'}"] if heads else []
    said += [words.join(words.machine_words(machine, cpus) for machine in known["machine"])]
    held = ", ".join(filter(None, said))
    return f" The numbers hold for {held}." if held else ""


def _tell_disturbed(rows: Frame) -> str:
    """How many rounds something else on the machine disturbed; empty where that is not known, or none."""
    share = find_disturbed(rows)
    return f" Something else disturbed {share:.0%} of the rounds; the intervals include that." if share else ""


def find_disturbed(rows: Frame) -> float | None:
    """The share of the rounds that something else on the machine disturbed; None where no rounds are known."""
    ok = rows[rows["status"] == "ok"]
    rounds = ok["rounds"].sum()
    return float(ok["contaminated"].sum() / rounds) if rounds else None


def warn_of_noise(rows: Frame, sessions: Sequence[Mapping[str, Any]]) -> str:
    """That the machine was no place to measure on, as its rounds show or as it said at the start; empty if it was."""
    share = find_disturbed(rows) or 0.0
    told = [f"something else disturbed {share:.0%} of the rounds"] if share > NOISY else []
    starts = dict.fromkeys(warning for s in sessions if (warning := (s.get("readiness") or {}).get("warning")))
    told += [f"at the start: {'; '.join(map(str, starts))}"] if starts else []
    if not told:
        return ""
    return f"Measured on a noisy machine ({'; '.join(told)}). Small differences may be its doing."


def tell_damage(places: Sequence[str]) -> str:
    """How many records are missing from the report because their lines are damaged, and where; empty for none."""
    if not places:
        return ""
    named = [*places[:MOST_NAMED], *([f"{len(places) - MOST_NAMED} more"] if len(places) > MOST_NAMED else [])]
    were = "line was" if len(places) == 1 else "lines were"
    return f"{len(places)} damaged {were} left out of this report: {words.join(named)}."
