"""Models with mechanisms under ``torch.compile``: one graph, and the results of the uncompiled model."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from tiny_models import llama, make_ids, mistral
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from transformers import CompileConfig

import efficient_attn as ea
from efficient_attn.errors import UnsupportedError
from efficient_attn.integrations.transformers import register

SPECS = ["full", "sliding_window:window=4", "linear"]


pytestmark = pytest.mark.sampled(3)


@pytest.fixture(autouse=True)
def _reset_compiler() -> None:
    torch.compiler.reset()
    counters.clear()


def _make(spec: Any, make: Any = llama) -> Any:
    torch.manual_seed(0)
    model = make().eval()
    ea.swap(model, spec)
    return model


def _pad_left(ids: torch.Tensor) -> torch.Tensor:
    valid = torch.ones_like(ids)
    valid[1, :5] = 0
    return valid


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("spec", [*SPECS, {0: "linear"}])
def test_a_pass_is_one_graph_with_its_gradients(spec: Any, padded: bool) -> None:
    model, ids = _make(spec), make_ids(3)
    options: dict[str, Any] = {"labels": ids.clone()} | ({"attention_mask": _pad_left(ids)} if padded else {})
    backend = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    got, want = (run(ids, **options) for run in (compiled, model))
    torch.testing.assert_close(got.logits, want.logits, rtol=0, atol=1e-5)
    weights = list(model.parameters())
    for got_grad, want_grad in zip(*(torch.autograd.grad(x.loss, weights) for x in (got, want)), strict=True):
        torch.testing.assert_close(got_grad, want_grad, rtol=0, atol=1e-5)
    compiled(ids.flip(1), **options)
    assert backend.frame_count == 1


@pytest.mark.slow
def test_inductor_compiles_the_mask_of_a_models_window() -> None:
    """It cannot lower every comparison of the assertion on masks."""
    model, ids = _make("full", mistral), make_ids(2)
    with torch.no_grad():
        got = torch.compile(model, fullgraph=True)(ids).logits
        torch.testing.assert_close(got, model(ids).logits, rtol=0, atol=1e-5)


def test_a_named_mechanism_is_one_graph_after_a_first_pass() -> None:
    torch.manual_seed(0)
    model, ids = llama().eval(), make_ids(2)
    model.set_attn_implementation(register("linear"))
    with pytest.raises(Exception, match="run the model once before it is compiled"):
        torch.compile(model, fullgraph=True, backend="aot_eager")(ids)
    torch.compiler.reset()
    want = model(ids).logits
    got = torch.compile(model, fullgraph=True, backend="aot_eager")(ids).logits
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("spec", "make"), [("full", mistral), ("sliding_window:window=4", mistral)])
def test_the_models_own_window_is_compiled_as_well(spec: str, make: Any) -> None:
    model, ids = _make(spec, make), make_ids(2)
    got = torch.compile(model, fullgraph=True, backend="aot_eager")(ids).logits
    torch.testing.assert_close(got, model(ids).logits, rtol=0, atol=1e-5)


def test_packed_sequences_in_a_compiled_model_are_refused() -> None:
    """A graph cannot depend on where sequences end, so the assertion in it must fail rather than join them."""
    model, ids = _make("full"), make_ids(1)
    positions = torch.arange(ids.shape[1])[None]
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    options = {"use_cache": False}
    want, got = model(ids).logits, compiled(ids, position_ids=positions, **options).logits
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
    with pytest.raises(RuntimeError, match="without packed sequences; do not compile it"):
        compiled(ids, position_ids=positions % 8, **options)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("spec", "graphs"), [("full", 1), ("linear", 1), (SPECS[1], 2), ({1: "full"}, 1)])
def test_steps_with_a_static_cache_share_graphs(spec: Any, graphs: int, padded: bool) -> None:
    """As many graphs for any number of steps: windows have a second one, for positions as variables."""
    model, ids = _make(spec), make_ids(3)
    config = CompileConfig(fullgraph=True, backend="aot_eager")
    config._compile_all_devices = True
    options: dict[str, Any] = {"max_new_tokens": 16, "do_sample": False, "output_logits": True, "eos_token_id": None}
    options |= {"return_dict_in_generate": True} | ({"attention_mask": _pad_left(ids)} if padded else {})
    want = model.generate(ids, **options)
    got = model.generate(ids, cache_implementation="static", compile_config=config, **options)
    assert torch.equal(got.sequences, want.sequences)
    torch.testing.assert_close(torch.stack(got.logits), torch.stack(want.logits), rtol=0, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == graphs


@pytest.mark.parametrize("spec", [*SPECS, "attention_sinks:window=4:n_sink=2", {0: "linear"}])
@pytest.mark.parametrize(
    "options",
    [
        {"cache_implementation": "static"},
        {"cache_implementation": "static", "prefill_chunk_size": 7},
        {"prefill_chunk_size": 7},
        {"prompt_lookup_num_tokens": 3},
        {"assistant_model": llama()},
    ],
    ids=["static", "static in chunks", "chunks", "prompt lookup", "assisted"],
)
def test_kinds_of_generation_agree(spec: Any, options: dict[str, Any]) -> None:
    model, ids = _make(spec), make_ids(1)
    sizes: dict[str, Any] = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None, "disable_compile": True}
    assert torch.equal(model.generate(ids, **sizes, **options), model.generate(ids, **sizes))


def test_a_mask_function_of_the_models_own_is_refused_when_compiled() -> None:
    from efficient_attn.integrations import model_masks

    def describe(x: torch.Tensor) -> torch.Tensor:
        mask = model_masks.describe_mask(1, 8, 8, mask_function=lambda b, h, i, j: j != i, use_vmap=True)
        mask.check_supported()
        return x

    with pytest.raises(Exception, match="neither causal nor within a window"):
        torch.compile(describe, fullgraph=True, backend="eager")(torch.zeros(1))
    with pytest.raises(UnsupportedError, match="neither causal nor within a window"):
        describe(torch.zeros(1))
