"""The verb recommend: published rows, and invalid requirements."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from shell import Command, loaded, run

RESULTS = Path(__file__).parents[2] / "results"


def test_it_recommends_from_published_rows(command: Command) -> None:
    arguments = ("--seq-len", "16K", "--mode", "decode", "--kv-heads", "2", "--max-error", ".1", "--machine", "Zen4")
    done = command("recommend", RESULTS / "decode_zen4", *arguments, "--json")
    assert (done.code, done.err) == (0, "")
    output = json.loads(done.out)
    assert output["choices"][0]["mechanism"].startswith("gqa")
    assert output["choices"][0]["how"] == "measured"
    assert output["choices"][0]["loss"] == "exact"


def test_without_an_answer_it_lists_the_missing_benchmarks(command: Command) -> None:
    done = command("recommend", RESULTS / "decode_zen4", "--seq-len", "3000K", "--mode", "decode", "--machine", "Zen4")
    assert (done.code, done.err) == (1, "")
    assert "efficient-attn run decode --seq-len 3072000 --device cpu" in done.out
    assert "left out: " in done.out


@pytest.mark.parametrize(("text", "shown"), [("1M", "1,048,576"), ("16K", "16,384"), ("8k", "8,192")])
def test_lengths_have_units(text: str, shown: str, command: Command) -> None:
    done = command("recommend", RESULTS / "decode_zen4", "--seq-len", text, "--mode", "decode")
    assert done.err == ""
    assert done.out.startswith(f"decode at {shown}, causal, on cpu")


def test_mechanisms_of_unknown_quality_are_listed_apart(command: Command) -> None:
    arguments = ("--seq-len", "64K", "--mode", "decode", "--max-error", ".5")
    runs = [RESULTS / name for name in ("decode_zen4", "fidelity_long")]
    done = command("recommend", *runs, *arguments)
    assert (done.code, done.err) == (0, "")
    ranked, _, unranked = done.out.partition("not verified at 65,536: of unknown quality, so not ranked")
    assert "sliding_window" not in ranked
    assert re.search(r"\?  sliding_window .*\n +window=128\n +relative error 1.11\n", unranked)
    assert unranked.count("No quality (error, causal) was measured beyond") == 1
    output = json.loads(command("recommend", *runs, *arguments, "--json").out)
    assert all(choice["mechanism"].startswith("full") for choice in output["choices"])
    labels = [entry["mechanism"] for entry in output["not_verified"]]
    assert {"sliding_window:window=128", "linear"} <= {*labels}
    assert all("error not verified at 65,536" in entry["reason"] for entry in output["not_verified"])


def test_data_has_the_conditions_of_a_quality(command: Command) -> None:
    runs = [RESULTS / name for name in ("promises_zen4", "fidelity_long")]
    done = command("recommend", *runs, "--seq-len", "4096", "--causal", "--max-error", "9", "--json")
    linear = next(choice for choice in json.loads(done.out)["choices"] if choice["mechanism"] == "linear")
    (figure,) = linear["quality"]
    assert {name: figure[name] for name in ("what", "model", "causal", "verified", "measured_spec")} == {
        "what": "error", "model": "SmolLM2-135M", "causal": True, "verified": True, "measured_spec": "linear",
    }  # fmt: skip
    assert figure["aggregate"] == "mean over 2 layers"
    assert figure["length"] >= 2048
    assert linear["error"]["on"] == f"SmolLM2-135M, N = {figure['length']:,}, causal, mean over 2 layers"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mode", "decode", "--no-causal"], "decode is always causal"),
        (["--memory", "2 parsecs"], "is not a size"),
        (["--latency", "50"], "is not a time such as 50ms"),
        (["--max-error", "-1"], "is not a number of at least 0"),
        (["--min-accuracy", "mqar"], "is not TASK=SHARE"),
        (["--min-accuracy", "mqar=.9", "--min-accuracy", "mqar=.8"], "names a task twice"),
        (["--min-accuracy", "spelling=.9"], "unknown task of --min-accuracy 'spelling'"),
        (["--machine", ""], "--machine must not be empty"),
        (["--machine", "Cray"], "unknown machine 'Cray'"),
        (["--max-error", ".1", "--max-error", ".2"], "argument --max-error: given twice; give it only once"),
    ],
)
def test_invalid_requirements_end_in_one_line(arguments: list[str], message: str, command: Command) -> None:
    done = command("recommend", RESULTS / "decode_zen4", "--seq-len", "1024", *arguments)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1


def test_recommending_without_runs_ends_in_one_line(tmp_path: Path) -> None:
    done = run("recommend", "--seq-len", "1024", cwd=tmp_path)
    assert done.code == 2
    assert "no runs in results/ here" in done.err


@pytest.mark.slow
def test_recommending_imports_no_torch(tmp_path: Path) -> None:
    found = loaded("recommend", str(RESULTS / "quickstart_zen4"), "--seq-len", "1024", cwd=tmp_path)
    assert {"torch", "matplotlib"} & found == set()
    assert "efficient_attn.report.answers.recommendation" in found
