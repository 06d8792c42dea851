"""The verbs: each calls one function and prints its result. Imports are local, so that light verbs start fast."""

from __future__ import annotations

import os
import sys
import warnings
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..garbage import garbage_collection_disabled
from . import engine_options
from .output import print_json, print_result, to_json_text, write_file
from .runs import choose_runs
from .split import read_planned, write_parts
from .stopping import interruptible_by_sigterm, report_stop

if TYPE_CHECKING:
    from ..bench.case import Case
    from ..bench.planning.plan import Overrides
    from ..bench.run import RunOutcome


def doctor(args: Namespace) -> int:
    """``efficient-attn doctor``: check whether the machine is ready for measurements."""
    from ..bench.doctor import diagnose

    diagnosis = diagnose(quick=args.quick, threads=args.threads, device=args.device)
    print_result(args, diagnosis.as_json(), diagnosis.lines())
    return 1 if args.strict and not diagnosis.healthy else 0


# -- suites --------------------------------------------------------------------------------------------------------


def plan(args: Namespace) -> int:
    """``efficient-attn plan``: list a suite's cases without running them."""
    cases = plan_cases(args)
    if args.split is not None:
        return write_parts(args, cases)
    if args.out is not None:
        raise UsageError("plan: --out is where --split N writes parts of the plan")
    from ..bench.planning.cost_estimate import estimate_cost, warn_of_memory

    estimate = estimate_cost(cases, jobs=args.jobs)
    warn_of_memory(cases, estimate)
    if args.json:
        from ..bench.case import as_json

        costs = [estimate.cases.get(case.key, (None, None)) for case in cases]
        estimates = [{"expected_s": wall_s, "expected_bytes": size} for wall_s, size in costs]
        return print_json([as_json(case) | estimate for case, estimate in zip(cases, estimates, strict=True)])
    from . import console

    console.show_plan(cases)
    console.show_cost_estimate(estimate.wall_s, estimate.peak_bytes, absent=estimate.absent)
    if reason := estimate.describe_over_budget():
        print(reason)
    return 0


def plan_cases(args: Namespace) -> list[Case]:
    """The cases of the suite and options of ``plan`` and ``run``."""
    from ..bench.planning.plan import make_plan
    from ..bench.planning.suite import load_suite
    from ..tasks import TABLE

    return make_plan(load_suite(args.suite, TABLE), _read_overrides(args))


@interruptible_by_sigterm()
def run(args: Namespace) -> int:
    """``efficient-attn run``: run a suite."""
    if args.retry_failed and not args.resume:
        raise UsageError("run: --retry-failed needs --resume: a new run has no failed cases")
    if args.suite is None and args.plan_part is None:
        raise UsageError("run: name a SUITE (`efficient-attn list` shows them), or a part of a plan with --plan-part")
    engine_options.check_options(args)
    args, part = (args, None) if args.plan_part is None else read_planned(args, load_guarded_plugin)
    from ..bench.measuring.conditions import make_engine
    from ..bench.planning.suite import load_suite
    from ..engines.turns import Turns
    from ..tasks import TABLE

    # reports a misspelled name before torch is imported
    loaded = load_suite(args.suite, TABLE, load=load_guarded_plugin)
    turns = Turns(args.turns)
    turns.wait()
    # the engine's server imports torch and the measuring code while this process does
    make_engine(args.start_method).start()
    from ..bench.planning.plan import make_plan

    overrides = _read_overrides(args)
    cases = make_plan(loaded, overrides)
    _warn_of_unused_plugins(args.registered, cases)
    cases = part.select(cases, args.plan_part) if part else cases
    from ..bench import run as running
    from ..bench.planning.cost_estimate import check_memory
    from . import console

    if args.memory_limit is None and args.engine == "local":
        check_memory(cases)
    folder = args.out or running.default_folder(loaded.name)
    if args.resume and folder.is_dir():
        from ..report.write import check_report

        check_report(folder)  # now, rather than after hours of measurements
    if args.engine == "slurm":
        from ..results.store import read

        engine_options.run_by_slurm(args, cases)
        return _report_run(args, running.RunOutcome(folder, Counter(record.row.status for record in read(folder))))
    with engine_options.connect_nodes(args) as nodes, console.show_progress(len(cases)) as on_progress:
        try:
            outcome = running.run(
                loaded,
                cases,
                folder,
                resume=args.resume,
                retry_failed=args.retry_failed,
                overridden=overrides.described,
                timeout_s=args.timeout,
                memory_bytes=args.memory_limit,
                start_method=args.start_method,
                jobs=args.jobs,
                turns=turns,
                part=part,
                nodes=nodes,
                progress=on_progress,
            )
        except KeyboardInterrupt as stop:
            return report_stop(stop, f"the rows so far are saved; continue with --resume --out {folder}")
    for message in outcome.repairs:
        print(f"efficient-attn: {message}", file=sys.stderr)
    return _report_run(args, outcome)


def _report_run(args: Namespace, outcome: RunOutcome) -> int:
    """Write the page of a run, and print its results. Returns 1 if a case has failed."""
    from ..bench.nodes.cluster_run import REPEATED_FOLDER
    from ..report.write import write_report
    from ..results.gathered import load
    from ..results.overrides import gather_overrides
    from ..results.store import read_sessions
    from . import summary

    folder, statuses = outcome.folder, outcome.statuses
    reproducibility = summary.describe_reproducibility(folder, folder / REPEATED_FOLDER)
    files, changes = write_report([folder], folder), gather_overrides(read_sessions(folder))
    if args.json:
        data = {"folder": str(folder), "page": str(files.page), "statuses": dict(statuses)}
        print_json(data | {"trial": list(changes), "reproducibility": reproducibility})
    else:
        rows = load(folder)
        summary.show_results(rows, overrides=changes)
        summary.show_statuses(statuses)
        summary.show_rounds(rows)
        print(*filter(None, [reproducibility, f"page: {files.page}"]), sep="\n")
    return 1 if outcome.failed else 0


def _warn_of_unused_plugins(registered: Mapping[str, list[str]], cases: Sequence[Case]) -> None:
    """Warn of each plug-in that registered mechanisms of which no case uses any. registered: names by plug-in."""
    used = {name for case in cases for name in case.variant.names}
    for plugin, names in registered.items():
        if names and used.isdisjoint(names):
            text = f"no case uses {', '.join(names)}; to measure it, name it, as in --variant full,{names[0]}"
            warnings.warn(f"--plugin {plugin}: {text}", stacklevel=2)


def load_guarded_plugin(plugin: str) -> list[str]:
    """Import a plug-in, after `bench.run`, whose import records the measuring functions; the names it registered."""
    from ..bench import run  # noqa: F401
    from ..engines.worker import load_watched_plugin

    return load_watched_plugin(plugin)


def _read_overrides(args: Namespace) -> Overrides:
    from ..bench.planning.plan import Overrides

    flag_keys = ("activations", "data", "memory_budget", "model", "text")  # keys with dedicated flags
    flags = {name: f"--{name.replace('_', '-')}" for name in flag_keys if getattr(args, name) is not None}
    keys = dict(args.set or ()) | {name: getattr(args, name) for name in flags}
    axes = {name: [value] for name, value in (args.shape.axes if args.shape else {}).items()}
    axes |= {name: getattr(args, name) for name in args.axes if getattr(args, name) is not None}
    return Overrides(
        axes=axes,
        keys=keys,
        flags=flags,
        shape=args.shape and args.shape.name,
        tasks=args.task or (),
        parts=() if args.part is None else (args.part,),  # names may contain commas; split where they are known
        variants=args.variant or (),
        seed=args.seed,
        quick=args.quick,
    )


# -- results -------------------------------------------------------------------------------------------------------


def report(args: Namespace) -> int:
    """``efficient-attn report``: write the report of runs."""
    if args.published:
        return _update_published(args)
    if args.export:
        return _export(args)
    from ..report.write import write_report

    runs = choose_runs("report", args.run)
    folder = args.out or (runs[0] if len(runs) == 1 and runs[0].is_dir() else Path("report"))
    files = write_report(runs, folder)
    data = {"page": str(files.page), "markdown": str(files.markdown), "csv": str(files.csv)}
    return print_result(args, data, [f"page: {files.page}", f"markdown: {files.markdown}", f"table: {files.csv}"])


def _update_published(args: Namespace) -> int:
    if len(args.run) > 1 or args.out or args.export:
        raise UsageError("report: --published takes one folder of runs, and neither --out nor --export")
    from ..report.published import update_published

    try:
        runs = [str(run) for run in update_published(Path(args.run[0]))]
    except OSError as error:
        raise UsageError(f"report: {error.filename or args.run[0]}: {error.strerror or error}") from error
    return print_result(args, {"runs": runs}, [f"published: {run}" for run in runs])


def _export(args: Namespace) -> int:
    from ..results import asv, exchange

    if len(args.run) > 1 or args.out:
        raise UsageError("report: --export takes one RUN and writes to what it names; leave out --out")
    (run,) = choose_runs("report", args.run)
    exporters = {"pytest-benchmark": exchange.to_pytest_benchmark, "github-action": exchange.to_github_action}
    for name, target in args.export:
        contents = asv.to_asv(run, target) if name == "asv" else {target: exporters[name](run)}
        for file, content in contents.items():
            write_file(file, to_json_text(content))
    files = {name: str(file) for name, file in args.export}
    return print_result(args, files, [f"{name}: {file}" for name, file in files.items()])


@garbage_collection_disabled(collect_first=False)  # it would search through all records, which have no cycles
def compare(args: Namespace) -> int:
    """``efficient-attn compare``: compare two runs case by case."""
    from ..report import comparison_text, github_annotations
    from ..report.junit import as_junit
    from ..results import file_marks
    from ..results.compare import compare
    from ..results.exchange import read_run

    paths = _choose_pair(args)
    if args.out and args.junit and args.out.resolve() == args.junit.resolve():
        raise UsageError(f"compare: --out and --junit are one file, {args.out}; name two")
    for option, file in (("--out", args.out), ("--junit", args.junit)):
        if file and file.resolve() in [path.resolve() for path in paths]:
            raise UsageError(f"compare: {option} {file} is one of the compared files; name another file")
    output_format = "json" if args.json else args.format
    if args.github and output_format == "json" and not args.out:
        raise UsageError("compare: --github prints annotations, which are not JSON; write the JSON to --out FILE")
    base, new = map(read_run, paths)
    settings = ("by", "confidence", "margin", "tolerance", "drift", "across_machines")
    comparison = compare(base, new, **{name: getattr(args, name) for name in settings})
    if output_format == "json":
        text = to_json_text(comparison_text.as_json(comparison))
    else:
        render = comparison_text.as_markdown if output_format == "markdown" else comparison_text.as_text
        text = render(comparison, include_all=args.all)
    if args.out:
        write_file(args.out, file_marks.add_mark(text, output_format))
        print(*comparison_text.summarise_comparison(comparison), f"comparison: {args.out}", sep="\n")
    else:
        print(text, end="")
    if args.junit:
        write_file(args.junit, file_marks.add_mark(as_junit(comparison), "xml"))
    if args.github:
        for annotation in github_annotations.list_annotations(comparison, new.command):
            print(annotation)
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            github_annotations.append_summary(comparison, Path(summary))
    if args.fail_on_regression and comparison.regressed:
        return 1
    return 3 if args.fail_if_blind and comparison.blind else 0


def _choose_pair(args: Namespace) -> tuple[Path, Path]:
    """The two runs to compare: of more than two paths, those that are runs."""
    if not args.more:
        return Path(args.base), Path(args.new)
    runs = choose_runs("compare", [args.base, args.new, *args.more], benchmark_files=True)
    if len(runs) != 2:
        raise UsageError(f"compare: takes two runs, BASE and NEW, not {len(runs)}")
    return runs[0], runs[1]
