"""The verb ``publish``: a static site of runs."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import values
from .output import print_result
from .runs import RESULTS, choose_runs

if TYPE_CHECKING:
    from ..report.site.site_data import MechanismDetails

SITE = RESULTS / "site"
PATTERN_CELLS = 32  # on each side of a pattern's picture


def add_options(add: Callable[..., object]) -> None:
    """Options of ``efficient-attn publish``."""
    add("run", metavar="RUN", nargs="*", help="a run's folder (default: all of results/)")
    add("--site", type=values.path, default=SITE, metavar="DIR", help="output folder (results/site)")
    docs_help = "link to documentation: an address, or a path relative to the site"
    add("--docs", default="", metavar="ADDRESS", help=docs_help)


def publish(args: Namespace) -> int:
    """``efficient-attn publish``: write the site of published runs."""
    from ..report.site.site_folder import check_site

    check_site(args.site)  # before torch is imported
    runs = choose_runs("publish", args.run, "*/rows*.jsonl*")
    from ..registry import names
    from ..report.site.build import publish as write

    details = {name: _describe_mechanism(name) for name in names()}
    site = write(runs, args.site, details=details, docs=args.docs, task_sentences=_describe_tasks())
    data = {"site": str(site.site), "runs": site.runs, "pages": site.pages, "bytes": site.size}
    counts = f"{site.runs} runs, {site.pages} pages, {site.size / 1e6:.2f} MB"
    return print_result(args, data, [f"site: {site.site / 'index.html'}", counts])


def _describe_mechanism(name: str) -> MechanismDetails:
    """A mechanism's description with its default options."""
    from ..patterns.rasterize import compute_share_grids
    from ..registry import info
    from ..report.site.pattern_svg import PatternDrawing
    from ..report.site.site_data import MechanismDetails
    from .console import format_kept_share

    mechanism = info(name)
    grids = []
    if mechanism.pattern:
        directions = mechanism.traits.directions
        grids = compute_share_grids(mechanism.pattern, directions=directions, rows=PATTERN_CELLS, columns=PATTERN_CELLS)
    return MechanismDetails(
        options={key: str(value) for key, value in mechanism.options.items()},
        time=mechanism.growth.time,
        memory=mechanism.growth.memory,
        features=tuple(text for claimed, text in mechanism.traits.meanings().values() if claimed),
        limits=mechanism.traits.unclaimed,
        backends=tuple(mechanism.backends),
        summary=" ".join(mechanism.doc.partition("\n\n")[0].split()),
        patterns=tuple(PatternDrawing(g.direction, g.geometry.n, format_kept_share(g), g.shares) for g in grids),
        causal=mechanism.traits.causal,
        cross=mechanism.traits.cross,
        parameters=mechanism.parameters,
    )


def _describe_tasks() -> dict[str, str]:
    """What each task measures: the first paragraph of its file, without the name before the colon."""
    from ..bench.task_registry import find_task, list_tasks
    from ..tasks import TABLE

    sentences = {}
    for name, target in list_tasks(TABLE).items():
        doc = sys.modules[find_task(target).source.__module__].__doc__ or ""
        title, _, text = " ".join(doc.partition("\n\n")[0].split()).partition(": ")
        sentences[name] = f"{text[:1].upper()}{text[1:]}" if text else title
    return sentences
