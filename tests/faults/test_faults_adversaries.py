"""Mechanisms that deceive the timer or the verification: each is detected, its honest counterpart is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd
import planted
import pytest
from adversary_detection import ADVERSARIES, LONG, SHORT, make_suite
from shell import run

import efficient_attn as ea
from efficient_attn.bench.measuring import inputs, jobs, output_comparison, samples, verification
from efficient_attn.bench.measuring.output_comparison import InvalidResult
from efficient_attn.bench.measuring.samples import make_timed, verify_workload
from efficient_attn.bench.measuring.workload import Workload
from efficient_attn.instruments import integrity
from efficient_attn.instruments.global_state import GlobalStateChanged, watch_global_state

SAYS = {  # what is said of it in a run; nothing of the one that is never wrong and gains nothing
    "pointer": "differs from the reference",
    "version": "differs from the reference",
    "corner": "differs from the reference",
    "contents": "",
    "constant": "differs from the reference",
    "second": "differs from the reference",
    "not_a_number": "the output of the reference implementation has values that are not finite",
    "lazy": "the output is a LateTensor, not a plain tensor",
    "clock": "it replaced efficient_attn.instruments.timing.perf_counter by its own (adversaries.py:",
    "thread": "",  # one of several, by how far it has come
    "short": "differs from the reference",
    "half": "differs from the reference",
    "numpy": "",  # the oracle sees what was written, or the inputs are not what they were
    "sixty": "it wrote into its input v",
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    folder = tmp_path_factory.mktemp("adversaries")
    names = [f"zz_{kind}{name}" for kind in ("", "honest_") for name in SAYS]
    (folder / "adversaries.toml").write_text(make_suite(names))
    run("run", "adversaries.toml", "--out", "out", cwd=folder)
    return ea.load(folder / "out").set_index(["variant", "seq_len"])


@pytest.mark.parametrize("name", SAYS)
def test_it_is_found_and_has_no_time(name: str, rows: pd.DataFrame) -> None:
    if name == "contents":
        pytest.skip("it is never wrong; that it gains nothing is tested below")
    length = LONG if name == "short" else SHORT
    row = rows.loc[(f"zz_{name}", length)]
    assert (row.status, pd.isna(row.latency_ms)) == ("invalid", True)
    assert SAYS[name] in row.reason


@pytest.mark.parametrize("length", [SHORT, LONG])
@pytest.mark.parametrize("name", SAYS)
def test_its_honest_twin_is_measured(name: str, length: int, rows: pd.DataFrame) -> None:
    row = rows.loc[(f"zz_honest_{name}", length)]
    assert (row.status, str(row.reason)) == ("ok", "<NA>")
    assert row.latency_ms > 0
    assert row.gate_len == length


# -- each layer is needed --------------------------------------------------------------------------------------------


@pytest.fixture
def registered() -> Iterator[None]:
    assert jobs.MeasureRounds  # importing it records what must not change
    with planted.undone():
        ea.load_plugin(str(ADVERSARIES))
        yield
    integrity.restore()


def _keep_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if inputs stayed as they are, the same for every call."""
    real = inputs.RowPool.write
    monkeypatch.setattr(inputs.RowPool, "write", lambda self, *_: real(self, 0, 0, 0))
    monkeypatch.setattr(inputs, "MIN_INPUT_SETS", 1)
    monkeypatch.setattr(samples, "MAX_INPUT_SETS", 1)


def _compare_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (output_comparison, verification):
        monkeypatch.setattr(module, "check_same", lambda *_: 0.0)


OFF: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "renewal": _keep_inputs,
    "comparison": _compare_nothing,
    "contents": lambda monkeypatch: monkeypatch.setattr(samples, "check_inputs", lambda feed: None),
    "plain": lambda monkeypatch: [
        monkeypatch.setattr(m, "check_plain", lambda *_: None) for m in (verification, samples)
    ],
    "seal": lambda monkeypatch: monkeypatch.setattr(integrity, "_recorded", {}),
    "ended": lambda monkeypatch: monkeypatch.setattr(samples, "check_finished", lambda last: None),
}
LAYERS = {
    "pointer": ["renewal"],
    "version": ["renewal"],
    "corner": ["renewal"],
    "constant": ["comparison"],
    "second": ["comparison"],
    "not_a_number": ["comparison"],
    "lazy": ["plain"],
    "clock": ["seal"],
    "thread": ["comparison", "ended"],
    "short": ["comparison"],
    "half": ["comparison"],
    "numpy": ["comparison", "contents"],
    "sixty": ["comparison", "contents"],
}


def _look(name: str, passes_taken: int = 40) -> str | None:
    """What is found of a mechanism, if anything."""
    w = Workload(planted.case(name, seq_len=LONG if "short" in name else SHORT))
    subject = make_timed(w, seed=0)
    try:
        with watch_global_state():
            verify_workload(w)
            for _ in range(passes_taken):
                subject.reset(3)
                subject.run(3)
                subject.verify()
    except (InvalidResult, GlobalStateChanged) as found:
        return str(found)
    return None


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", LAYERS)
def test_without_the_layer_that_finds_it_it_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SAYS[name] in (_look(f"zz_{name}") or "")
    assert _look(f"zz_honest_{name}") is None
    monkeypatch.setattr(integrity, "_recorded", {})  # it would find what is switched off here
    for layer in LAYERS[name]:
        OFF[layer](monkeypatch)
    assert _look(f"zz_{name}") is None


@pytest.mark.usefixtures("registered")
def test_a_memory_of_all_contents_is_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def computed() -> int:
        w = Workload(planted.case("zz_contents", seq_len=SHORT))
        subject = make_timed(w, seed=0)
        for _ in range(20):
            subject.reset(10)
            subject.run(10)
            subject.verify()
        return len(w.attn.cache)  # pyright: ignore

    assert computed() >= 0.95 * 200
    _keep_inputs(monkeypatch)
    assert computed() == 1


def test_every_adversary_has_a_case() -> None:
    with planted.undone():
        names = set(ea.load_plugin(str(ADVERSARIES)))
    assert names == {f"zz_{kind}{name}" for name in SAYS for kind in ("", "honest_")}
