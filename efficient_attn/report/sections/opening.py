"""What stands at a report's start: its title, how much was measured, and what of it was damaged."""

from __future__ import annotations

from collections.abc import Sequence

from .. import words
from ..gather import Frame, Gathered

MOST_NAMED = 6  # damaged lines


def make_title(found: Gathered) -> str:
    titles = dict.fromkeys(str((s.get("suite") or {}).get("title") or "") for s in found.sessions)
    named = [title for title in titles if title] or [str(s) for s in found.rows["suite"].dropna().unique()]
    return "; ".join(named[:3]) + (" and more" if len(named) > 3 else "") or "Attention mechanisms compared"


def sum_up(rows: Frame) -> str:
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
    return text + _tell_disturbed(ok)


def _tell_disturbed(rows: Frame) -> str:
    """How many rounds something else on the machine disturbed; empty where that is not known, or none."""
    rounds, disturbed = rows["rounds"].sum(), rows["contaminated"].sum()
    if not disturbed:
        return ""
    return f" Something else disturbed {disturbed / rounds:.0%} of the rounds; the intervals include that."


def tell_damage(places: Sequence[str]) -> str:
    """How many records are missing from the report because their lines are damaged, and where; empty for none."""
    if not places:
        return ""
    named = [*places[:MOST_NAMED], *([f"{len(places) - MOST_NAMED} more"] if len(places) > MOST_NAMED else [])]
    were = "line was" if len(places) == 1 else "lines were"
    return f"{len(places)} damaged {were} left out of this report: {words.join(named)}."
