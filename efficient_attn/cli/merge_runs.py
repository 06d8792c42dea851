"""The verb ``merge``: runs of one suite, or the parts of one plan, in a new folder."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from . import values
from .output import print_result
from .runs import choose_runs

MOST_CONFLICTS = 20  # lines


def add_options(add: Callable[..., object]) -> None:
    """Options of ``efficient-attn merge``."""
    add("run", metavar="RUN", nargs="+", help="a run's folder")
    add("--out", type=values.path, required=True, metavar="DIR", help="new folder; the runs do not change")


def merge(args: Namespace) -> int:
    """``efficient-attn merge``: one record of each case, with what was left out."""
    from ..results import merging

    merged = merging.merge(choose_runs("merge", args.run))
    is_new = merging.write(merged, args.out)
    counts = {"cases": len(merged.lines), "sessions": len(merged.sessions), "damaged": len(merged.quarantine)}
    conflicts = [
        {"case": conflict.case, "kept": conflict.chosen, "left_out": list(conflict.left_out)}
        for conflict in merged.conflicts
    ]
    data = {"folder": str(args.out), "new": is_new, **counts, "conflicts": conflicts}
    texts = [f"{count} {name}" for name, count in counts.items() if count]
    lines = [f"{'merged' if is_new else 'unchanged'}: {args.out}", ", ".join(texts)]
    if merged.conflicts:
        lines.append(f"several records of {len(merged.conflicts)} cases:")
        lines += [f"  {conflict}" for conflict in merged.conflicts[:MOST_CONFLICTS]]
        if (more := len(merged.conflicts) - MOST_CONFLICTS) > 0:
            lines.append(f"  and {more} others (--json lists all)")
    return print_result(args, data, [*lines, f"next: efficient-attn report {args.out}"])
