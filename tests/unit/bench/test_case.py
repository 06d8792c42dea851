"""Cases: keys, digests, fingerprints, mechanisms and rows."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import tiny_suites
import torch

import efficient_attn as ea
from efficient_attn.bench import case as case_module
from efficient_attn.bench.case import as_json
from efficient_attn.bench.planning.case_factory import make_case
from efficient_attn.bench.planning.plan import make_plan
from efficient_attn.errors import UnsupportedError
from efficient_attn.results import store
from efficient_attn.results.rows import COLUMNS
from efficient_attn.results.shards import strip_digest
from efficient_attn.spec import Spec

CASE = tiny_suites.case()
RESULTS = Path(__file__).parents[3] / "results"


def _changed(**fields: Any) -> Any:
    """The case with changed fields of its group, configuration or sampling plan."""
    group = CASE.group
    parts = {
        name: {k: v for k, v in fields.items() if hasattr(getattr(group, name), k)} for name in ("config", "sampling")
    }
    inner = {name: dataclasses.replace(getattr(group, name), **changes) for name, changes in parts.items()}
    known = parts["config"] | parts["sampling"]
    rest = {name: value for name, value in fields.items() if name not in known}
    return dataclasses.replace(CASE, group=dataclasses.replace(group, **inner, **rest))


def test_the_key_is_readable_and_stable() -> None:
    assert CASE.key == tiny_suites.case().key
    assert CASE.key.startswith("trial/all/forward/full/n16-b1-h2-kv2-d8/float32-cpu-t1-all#")


@pytest.mark.parametrize(
    "changed",
    [
        _changed(seed=1),
        _changed(max_len=17),
        _changed(rounds=9),
        _changed(budget_s=2.0),
        _changed(causal=True),
        _changed(dtype="float64"),
        _changed(device="cuda"),
        _changed(threads=2),
        _changed(batch=2),
        _changed(baseline=None),
        _changed(baseline_kv_heads=1),
        _changed(keys=(("memory_budget", 10**9), ("peak_memory", False))),
        _changed(inputs="other"),
        _changed(layer=3),
        _changed(fill="half"),
        _changed(keys=(("memory_budget", None), ("peak_memory", True))),
        _changed(part="b"),
        _changed(suite="b"),
        dataclasses.replace(CASE, fingerprint="another"),
        dataclasses.replace(CASE, options='{"x": 1}'),
        dataclasses.replace(CASE, backend="dense"),
        dataclasses.replace(CASE, kv_heads=1),
        dataclasses.replace(CASE, variant=Spec("linear")),
    ],
)
def test_the_digest_depends_on_all_settings_that_affect_results(changed: Any) -> None:
    assert changed.digest != CASE.digest


def test_the_digest_ignores_targets_and_paths_of_data() -> None:
    text = tiny_suites.TINY.replace('"forward"', '"fidelity"')
    (case, *_) = tiny_suites.plan(text, variants=["full"])
    keys = (("activations", "elsewhere.npz"),)  # the label identifies the data
    assert dataclasses.replace(case, group=dataclasses.replace(case.group, keys=keys)).digest == case.digest
    other_target = dataclasses.replace(CASE.group, target="my_tasks:SPEED")
    assert other_target != CASE.group
    assert dataclasses.replace(CASE, group=other_target).digest == CASE.digest


def test_the_digest_depends_on_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    before = CASE.digest
    monkeypatch.setattr(case_module, "PROTOCOL", 99)
    assert before != CASE.digest


def test_cases_with_default_settings_keep_their_digest_of_protocol_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case_module, "PROTOCOL", 3)
    group = dataclasses.asdict(CASE.group) | {"keys": {"memory_budget": None, "peak_memory": False}}
    del group["target"], group["of_blocks"], group["config"]["fill"], group["config"]["segment"]
    before = dataclasses.asdict(CASE) | {"variant": "full", "group": group, "protocol": 3}
    del before["budget"], before["keys_model"]
    assert hashlib.sha256(json.dumps(before, sort_keys=True).encode()).hexdigest()[:12] == CASE.digest


def test_the_digest_depends_on_options() -> None:
    assert tiny_suites.case("sliding_window:window=4").digest != tiny_suites.case("sliding_window:window=5").digest


def test_the_digest_ignores_explicit_defaults() -> None:
    assert tiny_suites.case("sliding_window").digest == tiny_suites.case("sliding_window:window=128").digest


def test_the_key_ignores_the_order_of_a_union() -> None:
    small, large = "sliding_window:window=1", "sliding_window:window=3"
    assert tiny_suites.case(f"{small}|{large}").key == tiny_suites.case(f"{large}|{small}").key


def test_the_key_ignores_the_order_of_options() -> None:
    variant = tiny_suites.parse(tiny_suites.TINY + '[[variant]]\nname="gqa:backend=dense"\noptions={ kv_heads = 1 }\n')
    assert [v.name for v in variant.suite.variant or ()] == ["full", "gqa:backend=dense"]
    assert tiny_suites.case("gqa:backend=dense:kv_heads=1").key == tiny_suites.case("gqa:kv_heads=1:backend=dense").key


def test_a_backend_is_part_of_the_case_and_of_its_mechanism() -> None:
    case = tiny_suites.case("full:backend=dense")
    assert case.backend == case.create().backend == "dense"
    assert tiny_suites.case().create().backend == "sdpa"
    assert case.create(backend="sdpa").backend == "sdpa"
    with pytest.raises(UnsupportedError, match="no backend 'nope'"):
        tiny_suites.case("full:backend=nope").create()


def test_the_mechanism_has_the_dimensions_of_the_group() -> None:
    attn = tiny_suites.case("gqa:kv_heads=1", dtype="float64", seq_len=24).create()
    assert attn.dims == ea.Dims(heads=2, kv_heads=1, head_dim=8, value_dim=8, max_len=24)
    assert tiny_suites.case("full").create().dims.max_len == 16


def test_parameters_have_the_dtype_of_the_group() -> None:
    with tiny_suites.isolated_registry():

        @ea.register("zz_learned", family="full")
        class Learned(ea.SoftmaxAttention):
            """Exact attention with a parameter."""

            def __init__(self) -> None:
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(3))

        assert tiny_suites.case("zz_learned", dtype="float64").create().weight.dtype == torch.float64


def test_rows_of_planned_cases_have_settings_but_no_results() -> None:
    row = tiny_suites.case("sliding_window:window=4", seq_len=32, causal=True).row()
    assert (row.variant, row.family, json.loads(row.options or "")) == (
        "sliding_window:window=4",
        "sparse",
        {"window": 4},
    )
    assert (row.seq_len, row.kv_len, row.heads, row.kv_heads, row.head_dim, row.batch) == (32, 32, 2, 2, 8, 1)
    assert (row.mode, row.task, row.causal, row.threads, row.compiled) == ("forward", "speed", True, 1, False)
    assert row.case_key
    assert row.latency_ms is None


def test_a_case_as_json_has_its_key_and_all_axes() -> None:
    flat = as_json(CASE)
    assert flat["case_key"] == CASE.key
    assert json.loads(json.dumps(flat)) == flat
    assert {"seq_len", "device", "dtype", "variant", "kv_heads", "max_len"} <= flat.keys()
    assert {"seq_len", "device", "dtype", "variant", "kv_heads"} <= set(COLUMNS)


# -- fingerprints ---------------------------------------------------------------------------------------------------

SOURCE = """
import efficient_attn as ea

@ea.register("zz_print", family="full")
class Mine(ea.SoftmaxAttention):
    "Exact attention. {}"
"""


def _fingerprint(folder: Path, name: str) -> str:
    path = folder / name / "mine.py"
    path.parent.mkdir()
    path.write_text(SOURCE.format(name))
    with tiny_suites.isolated_registry():
        ea.load_plugin(str(path))
        return tiny_suites.case("zz_print").fingerprint


def test_the_fingerprint_depends_on_the_source(tmp_path: Path) -> None:
    assert _fingerprint(tmp_path, "one") != _fingerprint(tmp_path, "two")


def test_the_fingerprint_is_the_same_for_equal_sources() -> None:
    assert (
        tiny_suites.case("sliding_window:window=3").fingerprint
        == tiny_suites.case("sliding_window:window=4").fingerprint
    )
    assert tiny_suites.case("full").fingerprint != tiny_suites.case("linear").fingerprint


DERIVED = """
import efficient_attn as ea
from efficient_attn import registry

@ea.register("zz_derived", family="full")
class Derived(registry.class_of("zz_print")):
    "The same."
"""


def test_the_fingerprint_ignores_paths_and_hash_order(tmp_path: Path) -> None:
    fingerprints = set()
    for number in range(8):  # two files of one name, whose order in sets is random
        folder = tmp_path / str(number)
        for name, text in (("base", SOURCE), ("derived", DERIVED)):
            (folder / name).mkdir(parents=True)
            (folder / name / "mine.py").write_text(text)
        with tiny_suites.isolated_registry():
            ea.load_plugin(str(folder / "base" / "mine.py"))
            ea.load_plugin(str(folder / "derived" / "mine.py"))
            fingerprints.add(tiny_suites.case("zz_derived").fingerprint)
    assert len(fingerprints) == 1


# -- layers --------------------------------------------------------------------------------------------------------


def test_a_layer_and_its_mechanism_are_different_cases() -> None:
    layer = _changed(of_blocks=True)
    assert strip_digest(layer.key) == strip_digest(CASE.key).replace("/forward/", "/forward-layers/")
    assert layer.digest != CASE.digest


REMOVED = "quickstart/training/", "/n512-"  # parts of the names of cases that are no longer planned


@pytest.mark.parametrize("suite", ["quickstart", "promises"])
def test_published_cases_are_still_planned_with_the_same_names(suite: str) -> None:
    names = {strip_digest(record.row.case_key) for record in store.read(RESULTS / f"{suite}_zen4")}
    published = {name for name in names if not all(part in name for part in REMOVED)}
    with tiny_suites.isolated_registry():
        planned = {strip_digest(case.key) for case in make_plan(tiny_suites.load_suite(suite))}
    assert len(published) > 40
    assert published <= planned


def test_the_fingerprint_of_a_layer_includes_its_mechanism() -> None:
    alone, inside, gru, lstm = (
        make_case(dataclasses.replace(CASE.group, of_blocks=layer), Spec(variant), None)
        for variant, layer in (("full", False), ("full", True), ("gru", True), ("lstm", True))
    )
    assert inside.fingerprint.startswith(alone.fingerprint)
    assert inside.fingerprint != alone.fingerprint
    assert gru.fingerprint == lstm.fingerprint  # one file
    assert gru.digest != lstm.digest
    assert (gru.family, gru.kv_heads, gru.backend, gru.row().options) == ("baseline", 2, None, "{}")


@pytest.mark.parametrize(
    "variant", ["sliding_window:window=8", "sliding_window:window=8|strided:stride=4", "gqa:kv_heads=2"]
)
def test_a_case_never_parses_its_variant_again(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = tiny_suites.case(variant)

    def refuse(text: str) -> Spec:
        raise AssertionError(f"{text!r} was parsed again")

    monkeypatch.setattr(Spec, "parse", refuse)
    assert case.create().spec == case.row().variant == str(case.variant)
    assert f"/{case.variant}/" in case.key
    assert pickle.loads(pickle.dumps(case)).variant == case.variant


@pytest.mark.parametrize(
    ("variant", "random"),
    [("full", False), ("linear", False), ("performer", True), ("bigbird", True), ("random_blocks:block_size=8", True)],
)
def test_cases_of_random_mechanisms_depend_on_the_seed(variant: str, random: bool) -> None:
    (case,) = tiny_suites.plan(tiny_suites.TINY, variants=[variant])[:1]
    assert case.is_random() == random
