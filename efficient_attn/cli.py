"""The command line: parses, calls, prints; no logic of its own.

Exit codes: 0 done, 1 done but cases or checks failed, 2 bad usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .errors import UnsupportedError, UsageError, unknown

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler writes to stderr unless told before its import
    parser = _parser()
    given = list(sys.argv[1:] if argv is None else argv)
    args, rest = parser.parse_known_args(given)
    try:
        if rest:
            verb = parser.verbs[args.verb]
            raise unknown("option", rest[0], [o for a in verb._actions for o in a.option_strings], where=args.verb)
        from .registry import load_plugin

        for plugin in getattr(args, "plugin", ()):
            load_plugin(plugin)
        code = args.call(args)
        sys.stdout.flush()  # here, where a reader who has left can still be told from an error
        return code
    except (UsageError, UnsupportedError) as error:
        print(f"efficient-attn: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("efficient-attn: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


# -- the verbs -----------------------------------------------------------------------------------------------------


def _list(args: argparse.Namespace) -> int:
    from .registry import catalogue
    from .shipped import suite_names

    entries, suites = catalogue(family=args.family), suite_names()
    if args.json:
        mechanisms = [{"name": e.name, "family": e.family, "sentence": e.sentence} for e in entries]
        return _print_json({"mechanisms": mechanisms, "suites": suites})
    from . import console

    console.show_catalogue(entries, suites)
    return 0


def _info(args: argparse.Namespace) -> int:
    from . import console
    from .registry import info

    about = info(args.name)
    if args.json:
        return _print_json(console.info_as_json(about))
    console.show_info(about)
    return 0


def _plan(args: argparse.Namespace) -> int:
    _, cases, _ = _planned(args)
    from .bench.case import as_json

    if args.json:
        return _print_json([as_json(case) for case in cases])
    from . import console

    console.show_plan(cases)
    return 0


def _run(args: argparse.Namespace) -> int:
    loaded, cases, overrides = _planned(args)
    from . import console
    from .bench.run import default_folder, run

    folder = Path(args.out) if args.out else default_folder(loaded.name)
    with console.progress(len(cases)) as tell:
        try:
            outcome = run(loaded, cases, folder, overrides=overrides, resume=args.resume, progress=tell)
        except KeyboardInterrupt:
            again = f"the rows so far are kept; go on with --resume --out {folder}"
            print(f"efficient-attn: interrupted; {again}", file=sys.stderr)
            return INTERRUPTED
    from .report import write_report
    from .results.frames import load

    written = write_report([folder], folder)
    if args.json:
        _print_json({"folder": str(folder), "page": str(written.page), "statuses": dict(outcome.statuses)})
    else:
        console.show_results(load(folder))
        console.show_statuses(outcome.statuses)
        print(f"page: {written.page}")
    return 1 if outcome.failed else 0


def _report(args: argparse.Namespace) -> int:
    from .report import write_report

    runs = [Path(r) for r in args.run]
    out = Path(args.out) if args.out else runs[0] if len(runs) == 1 and runs[0].is_dir() else Path("report")
    try:
        written = write_report(runs, out)
    except OSError as error:
        raise UsageError(f"report: {out}: cannot be written: {error.strerror or error}") from error
    if args.json:
        return _print_json({"page": str(written.page), "markdown": str(written.markdown), "csv": str(written.csv)})
    print(f"page: {written.page}\nmarkdown: {written.markdown}\ntable: {written.csv}")
    return 0


def _check(args: argparse.Namespace) -> int:
    from . import console
    from .registry import load_plugin

    names = load_plugin(args.name) if args.name.endswith(".py") else [args.name]
    if not names:
        raise UsageError(f"check: {args.name} registers no mechanism; decorate its class with @ea.register(...)")
    from .testing import run_checks

    outcomes = {name: run_checks(name, backend=args.backend) for name in names}
    if args.json:
        _print_json({name: [console.outcome_as_json(o) for o in found] for name, found in outcomes.items()})
    else:
        console.show_checks(outcomes)
    return 1 if any(o.status == "failed" for found in outcomes.values() for o in found) else 0


def _planned(args: argparse.Namespace) -> Any:
    from .bench.suite import load_suite

    loaded = load_suite(args.suite)  # a typing error is answered before torch is imported
    from .bench.plan import Overrides, make_plan

    axes = {name: getattr(args, name) for name in AXES if getattr(args, name) is not None}
    overrides = Overrides(
        axes=axes, variants=args.variant or (), activations=args.activations, seed=args.seed, quick=args.quick
    )
    return loaded, make_plan(loaded, overrides), overrides


def _print_json(value: Any) -> int:
    print(json.dumps(value, indent=2, default=str))
    return 0


# -- the parser ----------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Errors are one line that names the nearest valid choice."""

    verbs: dict[str, argparse.ArgumentParser]

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        if found := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            near = difflib.get_close_matches(found[1], re.findall(r"[\w-]+", found[2]), n=1)
            message += f"; did you mean {near[0]!r}?" if near else ""
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(2)


def _list_of(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """A comma-separated list; argparse names the option when a value does not fit."""

    def parse(text: str) -> list[Any]:
        return [kind(part.strip()) for part in text.split(",")]

    return parse


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _one_of(what: str, choices: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(str(unknown(what, text, choices)))
        return text

    return parse


AXES: dict[str, tuple[Callable[[str], Any], str]] = {
    "seq_len": (_count, "sequence lengths; context lengths when decoding"),
    "causal": (_truth, "true, false or both"),
    "dtype": (_one_of("dtype", ("float32", "float64", "float16", "bfloat16")), "data types"),
    "device": (_one_of("device", ("cpu", "cuda", "mps")), "devices"),
    "threads": (_count, "CPU threads"),
    "batch": (_count, "batch sizes"),
    "heads": (_count, "numbers of heads"),
    "kv_heads": (_count, "numbers of key-value heads"),
    "head_dim": (_count, "widths of a head"),
}


def _parser() -> _Parser:
    parser = _Parser(prog="efficient-attn", description="Attention mechanisms, proved right, then measured honestly.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=_Parser)
    parser.verbs = verbs.choices  # type: ignore[assignment]
    _verb(verbs, "list", _list, "show every mechanism and suite").add_argument("--family", help="only this family")
    _verb(verbs, "info", _info, "describe a mechanism with its options").add_argument("name", metavar="NAME")
    check = _verb(verbs, "check", _check, "hold a mechanism to what it claims")
    check.add_argument("name", metavar="NAME-or-FILE", help="a mechanism, or a .py file that registers some")
    check.add_argument("--backend", help="check this backend instead of the preferred one")
    _suite_options(_verb(verbs, "plan", _plan, "show what a suite would run"))
    run = _verb(verbs, "run", _run, "run a suite and write its page")
    _suite_options(run)
    run.add_argument("--out", metavar="DIR", help="where the results go (default: results/local/SUITE-TIME)")
    run.add_argument("--resume", action="store_true", help="go on in a folder that holds part of the run")
    report = _verb(verbs, "report", _report, "make a page, a Markdown file and plots of runs")
    report.add_argument("run", metavar="RUN", nargs="+", help="a run's folder")
    report.add_argument("--out", metavar="DIR", help="where the report goes (default: the run's own folder)")
    return parser


def _verb(verbs: Any, name: str, call: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    verb = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    verb.set_defaults(call=call)
    verb.add_argument("--json", action="store_true", help="print JSON for programs")
    verb.add_argument(
        "--plugin", metavar="FILE", action="append", default=[], help="a .py file or module to import first"
    )
    return verb


def _suite_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("suite", metavar="SUITE", help="a built-in suite's name, or a .toml file")
    verb.add_argument(
        "--variant", type=_list_of(str), metavar="A,B", help="only these mechanisms, or others than the suite's"
    )
    for name, (kind, text) in AXES.items():
        verb.add_argument(f"--{name.replace('_', '-')}", type=_list_of(kind), metavar="X,Y", help=text)
    verb.add_argument("--activations", metavar="FILE", help="captured q, k and v (.npz or .safetensors) for fidelity")
    verb.add_argument("--seed", type=_seed, metavar="N", help="seed of all inputs")
    verb.add_argument("--quick", action="store_true", help="two lengths and three rounds: a trial, not a result")


class _Version(argparse.Action):
    def __call__(self, *_: Any) -> None:
        from importlib.metadata import version

        print(version("efficient-attn"))
        sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
