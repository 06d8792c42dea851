"""The option ``context_parallel`` of layers."""

from typing import Any

import pytest
import torch
from rank_layers import (
    LayerCase,
    call_absolute,
    call_with_lengths,
    call_with_mask,
    call_without_gradient,
    compare_compiled,
    train_on_rank,
)
from rank_processes import RankProcesses

import efficient_attn as ea
from efficient_attn.distributed import ContextParallel, get_ranks
from efficient_attn.layers.positions import Alibi, Rotary

ROTARY, ALIBI = {"positions": Rotary()}, {"positions": Alibi()}
GROUPED = {"kv_heads": 2, "norm": True, "gated": True}
PREFIX = "UsageError: Mask:"
WINDOW = {"variant": "sliding_window:window=7"}
CASES = [
    LayerCase("ring", True, ROTARY | GROUPED, padding=True),
    LayerCase("ring", False, ROTARY | GROUPED, padding=True, steps=3),
    LayerCase("ring", True, ALIBI | {"value_dim": 12}, steps=3),
    LayerCase("ring", False, ROTARY | {"kv_heads": 1}, cross=16, padding=True),
    LayerCase("heads", True, ALIBI | {"kv_heads": 4}, padding=True),
    LayerCase("heads", False, ROTARY | {"variant": "longformer"}, steps=2),
    LayerCase("halo", True, WINDOW | ROTARY | GROUPED, padding=True, steps=2),
    LayerCase("halo", False, WINDOW | ROTARY, padding=True),
    LayerCase("halo", True, WINDOW | ALIBI),
    LayerCase("state", True, {"variant": "linear"} | ROTARY | GROUPED, padding=True, steps=2),
    LayerCase("state", False, {"variant": "performer", "kv_heads": 2}, padding=True),
    LayerCase("state", True, {"variant": "gated_delta_net"} | GROUPED, padding=True, steps=2),
    LayerCase("state", True, {"variant": "mamba2"}, steps=2),
    LayerCase("state", True, {"variant": "kda"} | ROTARY, padding=True),
]


def describe(case: LayerCase) -> str:
    return f"{case.scheme}-{case.options.get('variant', 'full')}-{'causal' if case.causal else 'both'}-{case.steps}"


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("case", CASES, ids=describe)
def test_a_layer_over_ranks_equals_one_process(rank_processes: RankProcesses, case: LayerCase, world: int) -> None:
    if case.scheme == "heads" and world > case.options.get("kv_heads", 4):
        return
    expected = case.train()
    for results in rank_processes.run(train_on_rank, case, world=world):
        assert isinstance(results, dict), results
        assert results.keys() == expected.keys()
        for name, x in expected.items():
            # the gradient of a bias of keys is a sum that cancels, of terms as large as those of the weights
            scale = expected[name.replace("bias", "weight")].abs().max().clamp(min=1)
            difference = float((results[name] - x).abs().max() / scale)
            assert difference < 5e-6, (name, difference)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["ring", "heads", "halo", "state"])
def test_autocast(rank_processes: RankProcesses, scheme: str) -> None:
    options = {"ring": {}, "heads": {}, "halo": WINDOW, "state": {"variant": "linear"}}[scheme]
    case = LayerCase(scheme, True, options | ROTARY, padding=True, autocast=True)
    expected = case.train()
    for results in rank_processes.run(train_on_rank, case, world=4):
        assert results["out"].dtype == torch.bfloat16
        for name, x in expected.items():
            torch.testing.assert_close(results[name].float(), x.float(), atol=0.03 * float(x.abs().max()), rtol=0)


@pytest.mark.slow
def test_compiled_layers(rank_processes: RankProcesses) -> None:
    assert rank_processes.run(compare_compiled, "halo", "sliding_window:window=3", world=2) == [0, 0]


@pytest.mark.slow
def test_positions_that_only_one_rank_knows(rank_processes: RankProcesses) -> None:
    for text in rank_processes.run(call_absolute, world=2):
        assert text.endswith("counts positions from a row's first key, which only one rank knows")


@pytest.mark.parametrize(
    ("scheme", "variant", "reason"),
    [
        ("ring", "linear", "only exact softmax attention over all keys can be joined from parts"),
        ("ring", "sliding_window", "only exact softmax attention over all keys can be joined from parts"),
        ("ring", "full:sink=learned", "only exact softmax attention over all keys can be joined from parts"),
        ("ring", "full:backend=dense", "parts are computed by backend 'sdpa', not 'dense'"),
        ("heads", "cosine", "its heads differ, or decide together"),
        ("heads", "retention", "its heads differ, or decide together"),
        ("halo", "full", "its queries see keys at any distance"),
        ("halo", "longformer", "its queries see keys at any distance"),
        ("state", "full", "it has no state of a fixed size that ranks could pass on"),
        ("state", "linear:backend=dense", "its backend 'dense' needs all keys at once"),
    ],
)
def test_mechanisms_that_a_scheme_does_not_support(scheme: Any, variant: str, reason: str) -> None:
    with pytest.raises(ea.UnsupportedError) as error:
        ea.MultiHeadAttention(32, 4, variant=variant, context_parallel=scheme)
    assert str(error.value).endswith(f"does not support context_parallel={scheme!r}: {reason}")
    assert "\n" not in str(error.value)


def test_dropout_of_a_ring() -> None:
    with pytest.raises(ea.UnsupportedError, match="parts have no dropout of weights; use 'heads'"):
        ea.MultiHeadAttention(32, 4, dropout=0.1, context_parallel="ring")


def test_unknown_schemes_and_missing_groups() -> None:
    with pytest.raises(ea.UsageError, match="unknown context_parallel 'rings'; did you mean 'ring'"):
        ea.MultiHeadAttention(32, 4, context_parallel="rings")  # pyright: ignore[reportArgumentType]
    layer = ea.MultiHeadAttention(32, 4, context_parallel="ring")
    with pytest.raises(ea.UsageError, match="needs a process group"):
        layer(torch.zeros(1, 4, 32))
    with pytest.raises(ea.UsageError, match="needs a process group"):
        get_ranks()
    with pytest.raises(ea.UnsupportedError, match="does not decode"):
        layer.init_state(1, 4)


@pytest.mark.slow
def test_parts_of_unequal_lengths(rank_processes: RankProcesses) -> None:
    for text in rank_processes.run(call_with_lengths, [4, 4, 6, 4], world=4):
        assert text == "UsageError: the ranks' calls differ: N is 4 on rank 0 and 6 on rank 2"
    (text, *_) = rank_processes.run(call_with_lengths, [0, 0], world=2)
    assert text.startswith("UsageError: ")


@pytest.mark.slow
def test_ranks_that_differ_in_gradients(rank_processes: RankProcesses) -> None:
    for text in rank_processes.run(call_without_gradient, world=2):
        assert text == "UsageError: the ranks' calls differ: gradient is 1 on rank 0 and 0 on rank 1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"query_start": 3}, "UnsupportedError: context_parallel='ring' does not support Mask(query_start=...)"),
        (
            {"key_mask": torch.ones(2, 8).bool()},
            f"{PREFIX} key_mask must have the shape of this rank's part, [2, 4], got [2, 8]",
        ),
        ({"key_lengths": torch.tensor([3, 9])}, f"{PREFIX} lengths count the whole sequence, 2 integers in [0, 8]"),
    ],
)
def test_masks_that_do_not_fit(rank_processes: RankProcesses, fields: dict[str, Any], message: str) -> None:
    for text in rank_processes.run(call_with_mask, fields, world=2):
        assert text == message


@pytest.mark.slow
def test_lengths_of_queries_count_the_whole_sequence(rank_processes: RankProcesses) -> None:
    fields = {"query_lengths": torch.tensor([3, 8])}
    first, second = rank_processes.run(call_with_mask, fields, world=2)  # positions 0 1 6 7, and 2 3 4 5
    bias = ea.MultiHeadAttention(8, 2)(torch.zeros(1, 1, 8)).detach()[0, 0]
    zeros = torch.stack([(x == bias).all(-1) for x in (first, second)])
    assert zeros[:, 0].tolist() == [[False, False, True, True], [False, True, True, True]]
    assert not zeros[:, 1].any()


def test_no_cost_without_the_option() -> None:
    layer = ea.MultiHeadAttention(32, 4)
    assert layer.context_parallel is None
    assert ContextParallel("ring").order(causal=True) == "zigzag"
    assert ContextParallel("ring").order(causal=False) == ContextParallel("halo").order(causal=True) == "contiguous"
