"""Parts of the command line: option values, signals, warnings and estimates."""

from __future__ import annotations

import argparse
import inspect
import signal
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from efficient_attn import cli
from efficient_attn.cli import console, values
from efficient_attn.cli.parser import make_parser
from efficient_attn.cli.stopping import Terminated, interruptible_by_sigterm, report_stop
from efficient_attn.results.compare import compare


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("8GB", 8 * 10**9), ("8gb", 8 * 10**9), ("8G", 8 * 10**9), ("512MiB", 512 * 2**20), ("512 MiB", 512 * 2**20),
        ("2e9", 2 * 10**9), ("1.5GiB", 3 * 2**29), ("1TB", 10**12), ("64KiB", 65536), ("1000", 1000), ("1000B", 1000),
        ("1e3kB", 10**6), ("2E9", 2 * 10**9),
    ],
)  # fmt: skip
def test_sizes_are_decimal_or_binary(text: str, bytes_: int) -> None:
    assert values.size(text) == bytes_


WRONG = {
    values.size: ["", "GB", "-1GB", "0", "0.1", "1e400", "8XB", "8GBB", "1.2.3", "nan", "inf", "8 G B"],
    values.seconds: ["", "0", "-1", "nan", "inf", "1s"],
    values.share: ["-0.1", "1", "nan", "x"],
    values.confidence: ["0", "1", "nan", "95%"],
    values.export: ["", "json=a", "github-action", "github-action="],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in WRONG.items() for text in texts])
def test_invalid_values_are_named(kind: Any, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as error:
        kind(text)
    assert (text.partition("=")[0] or "''") in str(error.value)
    assert "\n" not in str(error.value)


def test_valid_values_are_parsed() -> None:
    assert values.seconds("1.5") == 1.5
    assert values.share("0") == 0
    assert values.confidence("0.99") == 0.99
    assert values.export("github-action=a=b.json") == ("github-action", Path("a=b.json"))


def test_run_and_plan_take_all_axes() -> None:
    line = "run quickstart --cache warm,cold --compiled true,false --cuda-graph false --timeout 5 --memory-limit 1GB"
    args = make_parser().parse_args([*line.split(), "--start-method", "spawn", "--resume", "--retry-failed"])
    assert args.memory_budget is None
    assert (args.cache, args.compiled, args.cuda_graph) == (["warm", "cold"], [True, False], [False])
    assert (args.timeout, args.memory_limit, args.start_method) == (5.0, 10**9, "spawn")
    assert {"seq_len", "cache", "compiled", "cuda_graph"} <= set(args.axes)
    assert args.retry_failed
    for verb in ("plan", "run"):  # what is planned must be what runs
        assert make_parser().parse_args([verb, "quickstart", "--memory-budget", "16GB"]).memory_budget == 16 * 10**9


# -- being stopped -------------------------------------------------------------------------------------------------


def test_sigterm_interrupts_only_within_the_context() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated), interruptible_by_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_install_no_signal_handler() -> None:
    seen: list[Any] = []

    def work() -> None:
        with interruptible_by_sigterm():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize(
    ("stop", "what_now", "code", "line"),
    [
        (KeyboardInterrupt(), "", 130, "efficient-attn: interrupted\n"),
        (KeyboardInterrupt(), "go on", 130, "efficient-attn: interrupted; go on\n"),
        (Terminated(), "go on", 143, "efficient-attn: terminated; go on\n"),
    ],
)
def test_each_signal_has_its_message_and_exit_code(
    stop: KeyboardInterrupt, what_now: str, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_stop(stop, what_now) == code
    assert capsys.readouterr().err == line


# -- warnings ------------------------------------------------------------------------------------------------------


def test_package_warnings_are_one_line_and_others_unchanged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from efficient_attn.results.shards import DamagedRecord

    shown: list[Any] = []

    def speak(family: str | None) -> list[Any]:
        warnings.warn("rows.jsonl:3 was\nlost", DamagedRecord, stacklevel=1)
        warnings.warn("theirs", UserWarning, stacklevel=1)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        return []

    monkeypatch.setattr("efficient_attn.registry.catalogue", speak)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", lambda message, *_, **__: shown.append(str(message)))
        usual = warnings.showwarning
        assert cli.main(["list", "--json"]) == 0
        assert warnings.showwarning is usual
    assert capsys.readouterr().err == "efficient-attn: rows.jsonl:3 was lost\n"
    assert shown == ["theirs", "old"]


# -- what a plan is expected to take -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wall_s", "peak", "line"),
    [
        (130.4, 1.3 * 2**30, "about 2 min 10 s, peak memory about 1.3 GiB"),
        (0.2, 5 * 2**20, "about 1 s, peak memory about 5 MiB"),
        (59.7, 2**20, "about 1 min, peak memory about 1 MiB"),
        (119, 2**20, "about 2 min, peak memory about 1 MiB"),
        (3599, 2**20, "about 1 h, peak memory about 1 MiB"),
        (3900, 2**30, "about 1 h 5 min, peak memory about 1.0 GiB"),
    ],
)
def test_estimates_are_rounded(wall_s: float, peak: float, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    console.show_cost_estimate(wall_s, int(peak))
    assert capsys.readouterr().out == line + "\n"


def test_absent_devices_are_not_estimated(capsys: pytest.CaptureFixture[str]) -> None:
    console.show_cost_estimate(0.0, 0, absent={"cuda": "no CUDA device"})
    assert capsys.readouterr().out == "cuda: not estimated (no CUDA device)\n"
    console.show_cost_estimate(59.7, 2**20, absent={"cuda": "no CUDA device"})
    said = "about 1 min, peak memory about 1 MiB\ncuda: not estimated (no CUDA device)\n"
    assert capsys.readouterr().out == said


def test_the_parser_has_the_defaults_of_compare() -> None:
    """The parser repeats the defaults, because it imports nothing heavy."""
    parsed = vars(make_parser().parse_args(["compare", "a", "b"]))
    defaults = {
        name: p.default for name, p in inspect.signature(compare).parameters.items() if p.kind == p.KEYWORD_ONLY
    }
    assert {name: parsed[name] for name in defaults} == defaults
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        values.export("nothing=x")
    assert all(name in str(caught.value) and values.export(f"{name}=x") for name in values.EXPORT_FORMATS)
