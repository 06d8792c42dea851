"""The parser of the command line: every verb with its options. Errors are one line with the nearest valid choice."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from . import claims, mechanisms, new, plot, publish, recommend, runs, values, verbs
from .completion import PrintCompletion
from .examples import format_examples

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

    def error(self, message: str) -> NoReturn:
        """Print one line with the closest choice, and exit with code 2."""
        if match := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            closest = difflib.get_close_matches(match[1], re.findall(r"[\w-]+", match[2]), n=1)
            message += f"; did you mean {closest[0]!r}?" if closest else ""
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(2)


class _PrintVersion(argparse.Action):
    def __call__(self, *_: Any) -> None:
        from importlib.metadata import version

        print(version("efficient-attn"))
        sys.exit(0)


def make_parser() -> Parser:
    """The parser of all verbs."""
    parser = Parser(
        prog="efficient-attn", description="Benchmark efficient-attention mechanisms against exact attention."
    )
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version and exit")
    shells = ("bash", "zsh", "tcsh")
    parser.add_argument(
        "--print-completion", action=PrintCompletion, choices=shells, help="print a shell's completions"
    )
    subparsers = parser.add_subparsers(dest="verb", required=True, metavar="VERB", parser_class=Parser)
    parser.verbs = subparsers.choices  # type: ignore[assignment]
    for name, call, add_options, text in (
        ("list", mechanisms.list_, _add_list_options, "show every mechanism and suite"),
        ("info", mechanisms.info, _add_info_options, "describe a mechanism with its options"),
        ("check", mechanisms.check, _add_check_options, "verify that a mechanism satisfies its traits"),
        ("new", new.new, new.add_options, "write a file with a mechanism or a task to start from"),
        ("doctor", verbs.doctor, _add_doctor_options, "check whether this machine is ready for measurements"),
        ("plan", verbs.plan, _add_suite_options, "show the cases of a suite, and estimate their time and memory"),
        ("run", verbs.run, _add_run_options, "run a suite and write its page"),
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
            epilog=format_examples(name),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.set_defaults(call=call, parser=parser)
        verb.add_argument("--json", action="store_true", help="print JSON for programs")
        verb.add_argument(
            "--plugin", metavar="FILE", action="append", default=[], help="a .py file or module to import first"
        )
        add_options(verb)
    return parser


def _add_list_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--family", help="only this family")
    _add_picture_option(verb, "draw the patterns of all that have one into this file")


def _add_info_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("name", metavar="NAME", help="a mechanism with its options, or a union of patterns")
    _add_picture_option(verb, "draw its pattern into this file")


def _add_picture_option(verb: argparse.ArgumentParser, text: str) -> None:
    verb.add_argument("--picture", type=values.picture, metavar="FILE", help=f"{text}: .png, .svg or .pdf")


def _add_check_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("name", metavar="NAME-or-FILE", help="a mechanism, or a .py file that registers some")
    verb.add_argument("-v", "--verbose", action="store_true", help="also show what passed and what does not apply")
    verb.add_argument("--backend", help="check this backend instead of the preferred one")
    verb.add_argument("--device", choices=("cpu", "cuda", "mps"), default="cpu", help="device (default: cpu)")
    verb.add_argument(
        "--dtype",
        type=values.dtype,
        metavar="DTYPE",
        default="float64",
        help="dtype of all calls (default: float64; some checks add others)",
    )
    verb.add_argument(
        "--seed", type=values.seed, default=0, metavar="N", help="seed of the drawn sizes and inputs (default: 0)"
    )


def _add_doctor_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--quick", action="store_true", help="only the fast checks")
    verb.add_argument("--strict", action="store_true", help="exit with 1 when it is not ready to measure")
    verb.add_argument("--threads", type=values.count, metavar="N", help="CPU threads to measure with")
    verb.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device to check (default: cpu)")


def _add_suite_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("suite", metavar="SUITE", help="a built-in suite's name, or a .toml file")
    verb.add_argument("--task", **NAMES, help="only these of the suite's tasks")
    verb.add_argument("--variant", **NAMES, help="only these mechanisms; others than the suite's may be named")
    verb.add_argument("--part", metavar="A,B", help="only these of the suite's parts")
    verb.add_argument(
        "--shape", type=values.shape, metavar="MODEL", help="heads, key-value heads and width of a model: llama3-8b"
    )
    for name, (kind, text) in AXES.items():
        verb.add_argument(f"--{name.replace('_', '-')}", type=values.list_of(kind), metavar="X,Y", help=text)
    verb.add_argument(
        "--set",
        type=values.key_value,
        action="append",
        metavar="KEY=VALUE",
        help="a key of a task, such as activations=my.npz",
    )
    verb.add_argument("--activations", metavar="FILE", help="captured q, k and v (.npz or .safetensors) for fidelity")
    verb.add_argument("--model", **NAMES, help="trained models: smollm2, minilm, or a folder")
    verb.add_argument("--text", metavar="FILE", help="text that models read (default: State of the Union addresses)")
    verb.add_argument("--seed", type=values.seed, metavar="N", help="seed of all inputs")
    verb.add_argument(
        "--memory-budget", type=values.size, metavar="SIZE", help="report the longest context whose state fits: 16GB"
    )
    verb.add_argument("--quick", action="store_true", help="two lengths and three rounds: a quick try, not a result")
    verb.set_defaults(axes=tuple(AXES))


def _add_run_options(verb: argparse.ArgumentParser) -> None:
    _add_suite_options(verb)
    verb.add_argument("--out", **FOLDER, help="output folder (default: results/local/SUITE-TIME)")
    verb.add_argument("--resume", action="store_true", help="resume a run in its folder")
    verb.add_argument("--retry-failed", action="store_true", help="with --resume: measure failed cases again")
    verb.add_argument("--timeout", type=values.seconds, metavar="SECONDS", help="time limit of a case")
    limit_help = "memory limit of a case: 8GB, 512MiB; also runs cases that are expected to exceed the machine's memory"
    verb.add_argument("--memory-limit", type=values.size, metavar="SIZE", help=limit_help)
    verb.add_argument("--start-method", choices=("forkserver", "spawn"), help="how worker processes are started")
    turns = "alternate process runs with another run, through this inherited socket (docs: benchmark in CI)"
    verb.add_argument("--turns", type=int, metavar="FD", help=turns)


def _add_report_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("run", metavar="RUN", nargs="+", help="a run's folder")
    verb.add_argument("--out", **FOLDER, help="where to write the report (default: the run's folder)")
    verb.add_argument(
        "--export",
        type=values.export,
        action="append",
        metavar="FORMAT=FILE",
        help="write only this, for another tool: pytest-benchmark=FILE, github-action=FILE or asv=FOLDER",
    )
    verb.add_argument(
        "--published",
        action="store_true",
        help="RUN is a folder of runs: reduce each to what git stores, and list them",
    )


def _add_compare_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("base", metavar="BASE", help="a run's folder, or a pytest-benchmark JSON file")
    verb.add_argument("new", metavar="NEW", help="the same, measured later")
    verb.add_argument("more", nargs="*", help=argparse.SUPPRESS)  # what else a pattern matches; only two may be runs
    verb.add_argument(
        "--by",
        choices=("speedup", "latency"),
        default="speedup",
        help="compare speedups over the group's baseline (default), or latencies",
    )
    verb.add_argument(
        "--confidence", type=values.confidence, default=0.95, metavar="P", help="of all cases together (0.95)"
    )
    verb.add_argument("--margin", **SHARE, default=0.02, help="differences to ignore (2%%)")
    tolerance = "smaller differences count as the same; a case that cannot detect this one is blind (10%%)"
    verb.add_argument("--tolerance", **SHARE, default=0.1, help=tolerance)
    verb.add_argument("--drift", **SHARE, default=0.02, help="standard deviation of a time between runs (2%%)")
    verb.add_argument("--across-machines", action="store_true", help="compare runs of different machines anyway")
    verb.add_argument("--fail-on-regression", action="store_true", help="exit with 1 when a case is slower or broken")
    verb.add_argument(
        "--fail-if-blind",
        action="store_true",
        help="exit with 3 when a case could not detect a difference of the tolerance",
    )
    verb.add_argument("--github", action="store_true", help="annotate the GitHub workflow run, and write its summary")
    verb.add_argument("--junit", type=values.path, metavar="FILE", help="also write the comparison as JUnit XML")
    verb.add_argument("--all", action="store_true", help="also list unchanged cases")
    verb.add_argument("--format", choices=("text", "markdown", "json"), default="text", help="default: text")
    verb.add_argument("--out", type=values.path, metavar="FILE", help="write the comparison to a file")


def _add_claims_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("run", metavar="RUN", nargs="*", help="a run's folder")
    verb.add_argument("--claims", **FILES, help="test these claims instead of the built-in ones")
    verb.add_argument("--check", **FILES, help="check claim files, and print correct hashes")
