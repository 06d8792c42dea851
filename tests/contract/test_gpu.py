"""What each mechanism asks of a GPU, counted with tensors that pretend to be there: kernels, waits and copies.

A launch takes some microseconds, as long as a kernel of a short call, and a host that waits launches nothing. Results
are those of the same call on the processor. Only a GPU shows whether its kernels agree, and how fast they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from intercepted_kernels import pretended_gpu
from pretended_gpu import Work, count, get_data, move, to_gpu
from torch import Tensor

import efficient_attn as ea
from efficient_attn.contract import Shape
from efficient_attn.testing import Call, Subject

LENGTH, FLA_LENGTH, SIZES = 1152, 40, {"batch": 2, "head_dim": 16, "value_dim": 16}  # beyond every short form
TOLERANCE = 0.02  # relative error of bfloat16, with sums in another order


class Launches(NamedTuple):
    """The most kernels of a call without and with gradients, of a call with padding, and of a decode step."""

    forward: int
    gradients: int
    padded: int
    padded_gradients: int
    step: int


# those with gradients compute features and weights again
LAUNCHES = {
    **dict.fromkeys(("full", "dot", "gqa"), Launches(1, 8, 13, 26, 3)),
    "general": Launches(7, 18, 25, 43, 9),
    "cosine": Launches(14, 54, 37, 80, 16),
    "forgetting": Launches(103, 310, 124, 339, 24),
    "differential": Launches(28, 65, 63, 104, 30),
    "sigmoid": Launches(51, 175, 65, 192, 0),
    **dict.fromkeys(("sliding_window", "global_tokens", "longformer", "attention_sinks"), Launches(1, 8, 14, 23, 3)),
    **dict.fromkeys(("dilated_window", "random_blocks", "strided", "fixed", "bigbird"), Launches(1, 8, 14, 23, 6)),
    "topk": Launches(24, 59, 40, 81, 21),
    "block_topk": Launches(35, 81, 51, 103, 32),
    "quest": Launches(55, 110, 78, 139, 61),
    "dsa": Launches(39, 66, 57, 86, 51),
    "linear": Launches(23, 67, 39, 89, 1),
    "performer": Launches(63, 154, 80, 178, 16),
    "random_feature": Launches(34, 125, 50, 147, 16),
    "cosformer": Launches(37, 99, 53, 121, 14),
    "relu_linear": Launches(17, 55, 33, 77, 1),
    "taylor": Launches(33, 129, 49, 151, 12),
    **dict.fromkeys(("retention", "lightning"), Launches(15, 47, 31, 69, 2)),
    "mamba2": Launches(58, 171, 71, 187, 9),
    "gla": Launches(94, 278, 107, 294, 1),
    "delta_net": Launches(50, 170, 63, 186, 5),
    "gated_delta_net": Launches(71, 237, 86, 256, 5),
    "kda": Launches(132, 428, 147, 447, 5),
    "delta_product": Launches(71, 231, 88, 253, 11),
    "linformer": Launches(3, 65, 14, 78, 0),
    "nystromformer": Launches(91, 237, 142, 296, 0),
    "reformer": Launches(284, 670, 306, 695, 0),
    "mqa": Launches(1, 8, 14, 27, 3),
    "mla": Launches(3, 18, 20, 38, 8),
}

# of calls that flash-linear-attention computes, whose functions count as the kernels in its sources; steps are ours
FLA_LAUNCHES = {
    "linear": Launches(25, 59, 40, 77, 0),
    "relu_linear": Launches(17, 43, 32, 61, 0),
    **dict.fromkeys(("retention", "lightning"), Launches(7, 16, 18, 29, 0)),
    "mamba2": Launches(17, 39, 30, 55, 0),
    "gla": Launches(10, 25, 23, 41, 0),
    "delta_net": Launches(15, 43, 28, 59, 0),
    "gated_delta_net": Launches(17, 52, 32, 71, 0),
    "kda": Launches(18, 52, 33, 71, 0),
    "forgetting": Launches(7, 18, 0, 0, 0),
}

# kernels that go over tiles on the host, thousands of them: made for processors
TILED = ("additive", "luong_local", "vertical_slash", "moba", "nsa", "knorm")

# mechanisms whose host has to know in a call what is on the GPU
WAITS = {
    "reformer": "lengths, from which the number of buckets follows",
}


# patterns of which the host computes the keys of each step, which it copies
GAPS = ("dilated_window", "random_blocks", "strided", "fixed", "bigbird")


def test_every_mechanism_is_counted_or_named() -> None:
    assert {*LAUNCHES, *TILED} == set(ea.names())


def test_the_page_has_the_same_numbers() -> None:
    """docs/devices.md: names in a row are mechanisms, or windows, of which all are counted alike."""
    page = (Path(__file__).parents[2] / "docs" / "devices.md").read_text(encoding="utf-8")
    for header, limits in (("| Mechanism |", LAUNCHES), ("| With flash-linear-attention |", FLA_LAUNCHES)):
        table = page.partition(header)[2].partition("\n\n")[0].splitlines()[2:]
        assert len(table) > 7
        for names, *numbers in (line.strip("| ").split(" | ") for line in table):
            for name in re.findall("`(.*?)`", names):
                launches = limits[name].forward, limits[name].gradients, limits[name].step
                assert [int(x.partition(" ")[0].replace("-", "0")) for x in numbers] == list(launches)[: len(numbers)]


def list_masks(subject: Subject, length: int) -> Iterator[ea.Mask]:
    """Without padding and with lengths that are on the GPU."""
    for causal in subject.causalities:
        yield ea.Mask(causal=causal)
        if subject.traits.padding:
            yield ea.Mask(causal=causal, key_lengths=torch.tensor([length - length // 10, length]))


def to_pretended(call: Call) -> Call:
    lengths = call.mask.key_lengths
    mask = ea.Mask(causal=call.mask.causal, key_lengths=None if lengths is None else to_gpu(lengths))
    return call.change(to_gpu).under(mask)


def measure_error(got: Tensor, expected: Tensor) -> float:
    difference, size = (torch.linalg.vector_norm(x.double()) for x in (got - expected, expected))
    return float(difference / size) if size else float(difference)


def list_faults(work: Work) -> list[str]:
    return [
        f"{kind}: {place}" for kind in ("waits", "copies", "mixed") for place, n in getattr(work, kind).items() if n
    ]


def differentiate(call: Call, attn: ea.Attention) -> list[Tensor]:
    leaves = call.leaves()
    out, sources = leaves.run(attn), list({id(x): x for x in leaves.tensors.values()}.values())
    return list(torch.autograd.grad(out, sources, torch.ones_like(out), allow_unused=True, materialize_grads=True))


def compare(name: str, kind: str, work: Work, got: list[Tensor], expected: list[Tensor], most: int) -> None:
    """Assert a result, and that the work is within the mechanism's limits."""
    for x, y in zip(got, expected, strict=True):
        assert measure_error(get_data(x), y) < TOLERANCE, kind
    expected_kinds = {"waits"} if name in WAITS else {"copies"} if kind == "step" and name in GAPS else set()
    assert {fault.partition(":")[0] for fault in list_faults(work)} <= expected_kinds, (kind, list_faults(work))
    assert work.launches.total() <= most, (kind, work.launches.total())


@pytest.mark.slow
@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", LAUNCHES)
def test_calls_launch_few_kernels_and_wait_for_nothing(name: str) -> None:
    """Once a call of the same sizes has been made, from which tables of a pattern stay."""
    compare_calls(name, LAUNCHES[name], plain=True)


@pytest.mark.slow
@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", FLA_LAUNCHES)
def test_calls_of_flash_linear_attention_launch_few_kernels_and_wait_for_nothing(name: str) -> None:
    pytest.importorskip("fla")
    compare_calls(name, FLA_LAUNCHES[name], plain=False)


def compare_calls(name: str, launches: Launches, *, plain: bool) -> None:
    """Compare a mechanism's calls with those on the processor. plain: in plain torch, whatever is installed."""
    subject = Subject(name)
    length = LENGTH if plain else FLA_LENGTH
    for mask in list_masks(subject, length):
        attn, call = subject.prepare(length, mask=mask, dtype=torch.bfloat16, **SIZES)
        if plain and name in FLA_LAUNCHES:
            attn.backend = attn.backends[0]
        elif not plain and (not mask.causal or (mask.pads_keys and not launches.padded)):
            continue
        computations = {"forward": lambda call, attn: [torch.no_grad()(call.run)(attn)]}
        if subject.traits.gradient:
            computations["gradients"] = differentiate
        expected = {kind: run(call, attn) for kind, run in computations.items()}
        with pretended_gpu() as gpu:
            move(attn)
            moved = to_pretended(call)
            for kind, run in computations.items():
                run(moved, attn)
                work, results = count(gpu, lambda run=run, moved=moved, attn=attn: run(moved, attn))
                limit = kind if not mask.pads_keys else "padded" if kind == "forward" else "padded_gradients"
                compare(name, limit, work, results, expected[kind], getattr(launches, limit))


@pytest.mark.slow
@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", [name for name, launches in LAUNCHES.items() if launches.step])
def test_decode_steps_launch_few_kernels_and_wait_for_nothing(name: str) -> None:
    subject = Subject(name)
    attn, call = subject.prepare(LENGTH, mask=subject.mask(causal=True), dtype=torch.bfloat16, **SIZES)
    prompt, tokens = slice(0, LENGTH - 3), [slice(i, i + 1) for i in range(LENGTH - 3, LENGTH)]

    def decode(call: Call, device: str) -> Iterator[Tensor]:
        state = call.both(prompt).absorb(attn, attn.init_state(2, LENGTH, torch.bfloat16, device))
        for token in tokens:
            out, state = call.both(token).step(attn, state)
            yield out

    with torch.no_grad():
        *_, expected = decode(call, "cpu")
        with pretended_gpu() as gpu:
            move(attn)
            steps = decode(to_pretended(call), "cuda")
            for _ in tokens[1:]:
                next(steps)
            work, result = count(gpu, lambda: next(steps))
            compare(name, "step", work, [result], [expected], LAUNCHES[name].step)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spec", ["linear", "performer", "retention:normalised=true", "gated_delta_net", "mamba2"])
def test_odd_lengths_and_groups_have_the_same_gradients(spec: str, dtype: torch.dtype) -> None:
    """With a padded row, and a last chunk that is not full, which is computed apart."""
    attn = ea.create(spec, dims=ea.Dims(heads=4, kv_heads=2, head_dim=128, max_len=700), backend="chunked")
    g = torch.Generator().manual_seed(0)
    sample = attn.sample(Shape(2, 4, 2, 650, 650, 128, 128), generator=g, dtype=dtype)
    tensors = {"q": sample.q, "k": sample.k, "v": sample.v, **sample.inputs}
    lengths = torch.tensor([650, 601])

    def differentiate(place: Callable[[Tensor], Tensor]) -> list[Tensor]:
        leaves = {name: place(x).requires_grad_() for name, x in tensors.items()}
        out = attn(**leaves, mask=ea.Mask(causal=True, key_lengths=place(lengths)))
        return [out.detach(), *torch.autograd.grad(out, list(leaves.values()), torch.ones_like(out))]

    expected = differentiate(torch.clone)
    with pretended_gpu():
        move(attn)
        results = differentiate(to_gpu)
        for got, want in zip(results, expected, strict=True):
            assert measure_error(get_data(got), want) < (TOLERANCE if dtype == torch.bfloat16 else 1e-5)
