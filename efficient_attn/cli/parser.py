"""The parser of the command line: every verb with its options. Errors are one line with the nearest valid choice."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from ..errors import UsageError
from ..resources import list_suite_names
from ..variants import CATALOGUE
from . import claims, engine_options, mechanisms, merge_runs, new, plot, publish, recommend, runs, values, verbs

AXES: dict[str, tuple[Callable[[str], Any], str]] = {
    "seq_len": (values.length, "sequence lengths, such as 1024 or 32K; context lengths when decoding"),
    "causal": (values.boolean, "true, false or both"),
    "dtype": (values.dtype, "data types: float32, bf16, ..."),
    "device": (values.one_of("device", ("cpu", "cuda", "mps")), "devices"),
    "threads": (values.count, "CPU threads"),
    "batch": (values.count, "batch sizes"),
    "heads": (values.count, "numbers of heads"),
    "kv_heads": (values.count, "numbers of key-value heads"),
    "head_dim": (values.count, "widths of a head"),
    "cache": (values.one_of("cache", ("warm", "cold")), "caches: warm, cold or both"),
    "compiled": (values.boolean, "through torch.compile: true, false or both"),
    "cuda_graph": (values.boolean, "as a CUDA graph: true, false or both"),
    "fill": (values.one_of("fill", ("full", "half", "drawn", "packed")), "how full a batch's rows are"),
    "budget": (str, "keys a query (128, N/16) or bytes of a layer's state (192KiB), to which mechanisms are fitted"),
}

# the examples at the end of each verb's help
EXAMPLES: dict[str, tuple[str, ...]] = {
    "list": ("list", "list --family sparse --picture patterns.png"),
    "info": ("info performer:kind=hyperbolic", 'info "sliding_window:window=16|global_tokens:n_global=4"'),
    "new": ("new my_attn.py", "new my_score.py --kind score"),
    "check": ("check linear", "check my_attn.py --dtype float32 --seed 1"),
    "doctor": ("doctor", "doctor --quick --threads 1", "doctor --strict --json"),
    "plan": (
        "plan quickstart",
        "plan quickstart --shape llama3-8b --seq-len 4K",
        "plan accuracy --split 8 --out parts",
    ),
    "run": (
        "run quickstart --variant full,linear --seq-len 1K,4K --out results/local/mine",
        "run quickstart --plugin my_attn.py --variant full,sink_window",
    ),
    "merge": ("merge runs/1 runs/2 --out merged", "merge runs/1 runs/2 --out merged --json"),
    "report": ("report results/local/mine", "report results/local/mine --export github-action=benchmark.json"),
    "compare": ("compare before after", "compare before after --fail-on-regression --format markdown"),
    "claims": ("claims results/quickstart_zen4", "claims --check my_claims.toml"),
    "plot": (
        "plot results/linear_xeon --figure speed --causal --out speed.pdf",
        "plot results/linear_xeon --figure crossover --only linear,performer --format tex",
    ),
    "publish": ("publish", "publish results/promises_xeon results/decode_xeon --site public"),
    "recommend": ("recommend --seq-len 8K --causal --max-ppl-ratio 1.1", "recommend --seq-len 16K --mode decode"),
    "runs": ("runs", "runs --json"),
    "clean": ("clean --dry-run", "clean"),
}
COMPLETED = {"SUITE": "suites", "NAME": "mechanisms", "NAME-or-FILE": "mechanisms"}  # of positional arguments
COMPLETERS = {  # that complete names and files; tcsh completes files only
    "bash": '_efficient_attn_{}() {{ compgen -W "{}" -- "$1"; compgen -f -- "$1"; }}',
    "zsh": "_efficient_attn_{}() {{ compadd {}; _files; }}",
}


Add = Callable[..., object]  # `Parser.add_argument` of a verb

# settings that several options share
NAMES: dict[str, Any] = {"type": values.list_of(str), "metavar": "A,B"}
FILES: dict[str, Any] = {"nargs": "+", "action": "extend", "default": [], "metavar": "FILE"}
FOLDER: dict[str, Any] = {"type": values.path, "metavar": "DIR"}
SHARE: dict[str, Any] = {"type": values.share, "metavar": "X"}


class Parser(argparse.ArgumentParser):
    """An argument parser with errors of one line and without abbreviations. options: all option strings."""

    verbs: dict[str, Parser]

    def __init__(self, **settings: Any) -> None:
        self.options: list[str] = []
        super().__init__(allow_abbrev=False, **settings)

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        """Add an argument, and remember its option strings."""
        action = super().add_argument(*names, **settings)
        self.options += action.option_strings
        return action

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help or an error; help that cannot be written is an error, which argparse would ignore."""
        if file is not sys.stdout:
            super()._print_message(message, file)
        elif message:
            print(message, end="", flush=True)

    def error(self, message: str) -> NoReturn:
        """Print one line with the closest choice, and exit with code 2."""
        if match := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            closest = difflib.get_close_matches(match[1], re.findall(r"[\w-]+", match[2]), n=1)
            message += f"; did you mean {closest[0]!r}?" if closest else ""
        with suppress(OSError):  # stderr may be full or closed
            print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(2)


class _PrintVersion(argparse.Action):
    def __call__(self, *_: Any) -> None:
        from importlib.metadata import version

        print(version("efficient-attn"))
        sys.exit(0)


class _PrintCompletion(argparse.Action):
    """Print the script by which a shell completes verbs, options, mechanisms, suites and files."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, shell: Any, option: Any = None) -> None:
        """Print it and exit. Raises `UsageError` without shtab."""
        try:
            import shtab
        except ImportError:
            raise UsageError("--print-completion needs shtab: python -m pip install shtab") from None
        paths = dict.fromkeys(("DIR", "RUN"), shtab.DIRECTORY) | dict.fromkeys(("FILE", "BASE", "NEW"), shtab.FILE)
        for action in (action for verb in parser.verbs.values() for action in verb._actions):  # type: ignore[attr-defined]
            if action.metavar in COMPLETED and not action.option_strings:
                action.complete = dict.fromkeys(COMPLETERS, f"_efficient_attn_{COMPLETED[action.metavar]}") | {
                    "tcsh": "f"
                }
            elif action.metavar in paths:
                action.complete = paths[action.metavar]
        names = {"suites": " ".join(list_suite_names()), "mechanisms": " ".join(entry.name for entry in CATALOGUE)}
        preamble: Any = {shell: "\n".join(map(it.format, names, names.values())) for shell, it in COMPLETERS.items()}
        print(shtab.complete(parser, shell=shell, preamble=preamble))
        sys.exit(0)


def make_parser() -> Parser:
    """The parser of all verbs."""
    parser = Parser(
        prog="efficient-attn", description="Benchmark efficient-attention mechanisms against exact attention."
    )
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version and exit")
    shells = ("bash", "zsh", "tcsh")
    parser.add_argument(
        "--print-completion", action=_PrintCompletion, choices=shells, help="print a shell's completions"
    )
    subparsers = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)
    parser.verbs = subparsers.choices  # type: ignore[assignment]
    for name, call, add_options, text in (
        ("list", mechanisms.list_, _add_list_options, "show every mechanism and suite"),
        ("info", mechanisms.info, _add_info_options, "describe a mechanism with its options"),
        ("check", mechanisms.check, _add_check_options, "verify that a mechanism satisfies its traits"),
        ("new", new.new, new.add_options, "write a file with a mechanism or a task to start from"),
        ("doctor", verbs.doctor, _add_doctor_options, "check whether this machine is ready for measurements"),
        ("plan", verbs.plan, _add_plan_options, "show the cases of a suite, and estimate their time and memory"),
        ("run", verbs.run, _add_run_options, "run a suite and write its page"),
        ("merge", merge_runs.merge, merge_runs.add_options, "merge runs of one suite, or the parts of a plan"),
        ("report", verbs.report, _add_report_options, "make a page, a Markdown file and plots of runs"),
        ("compare", verbs.compare, _add_compare_options, "compare two runs and report regressions"),
        ("claims", claims.claims, _add_claims_options, "test published claims against measured runs"),
        ("plot", plot.plot, plot.add_options, "draw a figure for a paper, or write its table in LaTeX"),
        ("publish", publish.publish, publish.add_options, "write a static site of runs"),
        ("recommend", recommend.recommend, recommend.add_options, "recommend a mechanism from measured runs"),
        ("runs", runs.runs, runs.add_runs_options, "list local runs"),
        ("clean", runs.clean, runs.add_clean_options, "remove generated pages, and checkpoints of finished runs"),
    ):
        verb = subparsers.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog="\n".join(["examples:", *(f"  efficient-attn {example}" for example in EXAMPLES[name])]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.set_defaults(call=call, parser=parser, axes=tuple(AXES))
        verb.add_argument("--json", action="store_true", help="print JSON for programs")
        verb.add_argument(
            "--plugin", metavar="FILE", action="append", default=[], help="a .py file or module to import first"
        )
        add_options(verb.add_argument)
    return parser


def _add_list_options(add: Add) -> None:
    add("--family", help="only this family")
    _add_picture_option(add, "draw the patterns of all that have one into this file")


def _add_info_options(add: Add) -> None:
    add("name", metavar="NAME", help="a mechanism with its options, or a union of patterns")
    _add_picture_option(add, "draw its pattern into this file")


def _add_picture_option(add: Add, text: str) -> None:
    add("--picture", type=values.picture, metavar="FILE", help=f"{text}: .png, .svg or .pdf")


def _add_check_options(add: Add) -> None:
    add("name", metavar="NAME-or-FILE", help="a mechanism, or a .py file that registers some")
    add("-v", "--verbose", action="store_true", help="also show what passed and what does not apply")
    add("--backend", help="check this backend instead of the preferred one")
    add("--device", choices=("cpu", "cuda", "mps"), default="cpu", help="device (default: cpu)")
    dtype_help = "dtype of all calls (default: float64; some checks add others)"
    add("--dtype", type=values.dtype, metavar="DTYPE", default="float64", help=dtype_help)
    add("--seed", type=values.seed, default=0, metavar="N", help="seed of the drawn sizes and inputs (default: 0)")
    add("--thorough", action="store_true", help="ten times as many calls: every pair of sizes, dtypes, masks, options")
    add("--coverage", type=values.path, metavar="FILE", help="write which pairs the compared calls had, as CSV")


def _add_doctor_options(add: Add) -> None:
    add("--quick", action="store_true", help="only the fast checks")
    add("--strict", action="store_true", help="exit with 1 when it is not ready to measure")
    add("--threads", type=values.count, metavar="N", help="CPU threads to measure with")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="device to check (default: cpu)")


def _add_plan_options(add: Add) -> None:
    _add_suite_options(add)
    split_help = "write so many parts of the plan into --out, for machines of one kind (run --plan-part, then merge)"
    add("--split", type=values.count, metavar="N", help=split_help)
    add("--out", **FOLDER, help="with --split: folder of the parts")


def _add_suite_options(add: Add, **settings: Any) -> None:
    add("suite", metavar="SUITE", **settings, help="a built-in suite's name, or a .toml file")
    add("--task", **NAMES, help="only these of the suite's tasks")
    add("--variant", **NAMES, help="only these mechanisms; others than the suite's may be named")
    add("--part", metavar="A,B", help="only these of the suite's parts")
    add("--shape", type=values.shape, metavar="MODEL", help="heads, key-value heads and width of a model: llama3-8b")
    for name, (kind, text) in AXES.items():
        add(f"--{name.replace('_', '-')}", type=values.list_of(kind), metavar="X,Y", help=text)
    set_help = "a key of a task, such as activations=my.npz"
    add("--set", type=values.key_value, action="append", metavar="KEY=VALUE", help=set_help)
    add("--activations", metavar="FILE", help="captured q, k and v (.npz or .safetensors) for fidelity")
    add("--model", **NAMES, help="trained models: smollm2, minilm, or a folder")
    add("--text", metavar="FILE", help="text that models read (default: State of the Union addresses)")
    add("--data", metavar="DIR", help="folder with the files of a training task, such as those of Long Range Arena")
    add("--seed", type=values.seed, metavar="N", help="seed of all inputs")
    add("--memory-budget", type=values.size, metavar="SIZE", help="report the longest context whose state fits: 16GB")
    add("--quick", action="store_true", help="two lengths and three rounds: a quick try, not a result")
    jobs_help = "train so many models at the same time, each with its threads; timed cases still run alone (default: 1)"
    add("--jobs", type=values.count, metavar="N", default=1, help=jobs_help)


def _add_run_options(add: Add) -> None:
    _add_suite_options(add, nargs="?")
    add("--plan-part", type=values.path, metavar="FILE", help="a part of a plan (plan --split), instead of a suite")
    add("--out", **FOLDER, help="output folder (default: results/local/SUITE-TIME)")
    add("--resume", action="store_true", help="resume a run in its folder")
    add("--retry-failed", action="store_true", help="with --resume: measure failed cases again")
    add("--timeout", type=values.seconds, metavar="SECONDS", help="time limit of a case")
    limit_help = "memory limit of a case, of a GPU's memory if it runs there: 8GB, 512MiB; "
    limit_help += "also runs cases that are expected to exceed the machine's memory"
    add("--memory-limit", type=values.size, metavar="SIZE", help=limit_help)
    add("--start-method", choices=("forkserver", "spawn"), help="how worker processes are started")
    turns = "alternate process runs with another run, through this inherited socket (docs: benchmark in CI)"
    add("--turns", type=int, metavar="FD", help=turns)
    engine_options.add_options(add)


def _add_report_options(add: Add) -> None:
    add("run", metavar="RUN", nargs="+", help="a run's folder")
    add("--out", **FOLDER, help="where to write the report (default: the run's folder)")
    export_help = "write only this, for another tool: pytest-benchmark=FILE, github-action=FILE or asv=FOLDER"
    add("--export", type=values.export, action="append", metavar="FORMAT=FILE", help=export_help)
    published_help = "RUN is a folder of runs: reduce each to what git stores, and list them"
    add("--published", action="store_true", help=published_help)


def _add_compare_options(add: Add) -> None:
    add("base", metavar="BASE", help="a run's folder, or a pytest-benchmark JSON file")
    add("new", metavar="NEW", help="the same, measured later")
    add("more", nargs="*", help=argparse.SUPPRESS)  # what else a pattern matches; only two may be runs
    by_help = "compare speedups over the group's baseline (default), or latencies"
    add("--by", choices=("speedup", "latency"), default="speedup", help=by_help)
    add("--confidence", type=values.confidence, default=0.95, metavar="P", help="of all cases together (0.95)")
    add("--margin", **SHARE, default=0.02, help="differences to ignore (2%%)")
    tolerance = "smaller differences count as the same; a case that cannot detect this one is blind (10%%)"
    add("--tolerance", **SHARE, default=0.1, help=tolerance)
    add("--drift", **SHARE, default=0.02, help="standard deviation of a time between runs (2%%)")
    add("--across-machines", action="store_true", help="compare runs of different machines anyway")
    add("--fail-on-regression", action="store_true", help="exit with 1 when a case is slower or broken")
    fail_if_blind_help = "exit with 3 when a case could not detect a difference of the tolerance"
    add("--fail-if-blind", action="store_true", help=fail_if_blind_help)
    add("--github", action="store_true", help="annotate the GitHub workflow run, and write its summary")
    add("--junit", type=values.path, metavar="FILE", help="also write the comparison as JUnit XML")
    add("--all", action="store_true", help="also list unchanged cases")
    add("--format", choices=("text", "markdown", "json"), default="text", help="default: text")
    add("--out", type=values.path, metavar="FILE", help="write the comparison to a file")


def _add_claims_options(add: Add) -> None:
    add("run", metavar="RUN", nargs="*", help="a run's folder")
    add("--claims", **FILES, help="test these claims instead of the built-in ones")
    add("--check", **FILES, help="check claim files, and print correct hashes")
