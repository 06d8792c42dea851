"""Probes of torch features, for torch_features.py: each tests one feature of a spec with a small call.

A probe returns "yes", or the reason why not. Results and gradients are compared with the plain eager call, second
derivatives with the reference implementation.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported

import efficient_attn as ea
from efficient_attn.bench.measuring.workload import count_graph_breaks
from efficient_attn.testing import Call, Subject

LENGTH = 130
TOLERANCE = 1e-4  # of float32 results with another order of summation


def draw_call(spec: str, dtype: torch.dtype = torch.float32) -> tuple[ea.Attention, Call]:
    """A mechanism and a call of it, causal if supported."""
    subject = Subject(spec)
    shape = subject.shape(LENGTH)
    call = subject.draw(shape, mask=ea.Mask(causal=subject.traits.causal), dtype=dtype)
    return subject.make(shape, dtype=dtype), call


def split_tensors(call: Call) -> tuple[list[str], list[Tensor]]:
    """A call's tensors and their names; a tensor used twice occurs once."""
    pairs = {id(x): (name, x) for name, x in call.tensors.items()}.values()
    return [name for name, _ in pairs], [x for _, x in pairs]


class CallModule(nn.Module):
    """A call as a module whose arguments are tensors."""

    def __init__(self, attn: ea.Attention, call: Call) -> None:
        super().__init__()
        self.attn, self.call, self.names = attn, call, split_tensors(call)[0]

    def forward(self, *tensors: Tensor) -> Tensor:
        q, k, v, rest = tensors[0], tensors[0], None, dict(zip(self.names, tensors, strict=True))
        if not self.call.shares_qk:
            q, k = rest.pop("q"), rest.pop("k")
        else:
            rest.pop(self.names[0])
        v = rest.pop("v", None)
        return self.attn(q, k, v, self.call.mask, **rest)


def make_weights(out: Tensor) -> Tensor:
    return torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)


def measure_difference(actual: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference, relative to the expected size."""
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1)) for a, b in zip(actual, expected, strict=True))


def format_refusal(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"refused: {text[:100]}"


def probe_autocast(spec: str) -> str:
    """Output and gradients in bfloat16 compared with float32, on inputs that bfloat16 represents exactly."""
    attn, call = draw_call(spec)
    call = call.change(lambda x: x.bfloat16().float())
    expected_out, expected_grads = call.gradients(attn)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            actual_out, grads = call.gradients(attn)
    except ea.UnsupportedError as error:  # a backend that does not support the dtype
        return format_refusal(error)
    if actual_out.dtype != torch.bfloat16:
        return f"no: the output is {actual_out.dtype}"
    pairs = [(actual_out.float(), expected_out), *((grads[n], expected_grads[n]) for n in expected_grads)]
    worst = max(float((a - b).norm() / (b.norm() + 0.03 * b.numel() ** 0.5)) for a, b in pairs)
    return "yes" if worst < 0.03 else f"no: off by {worst:.0%}"


def probe_double_backward(spec: str) -> str:
    """Second derivatives of losses that are linear in the output, and of others, compared with the reference."""
    answers = set()
    for loss in (lambda out: (out * make_weights(out)).sum(), lambda out: out.square().sum()):
        attn, call = draw_call(spec, torch.float64)

        def second(attn: ea.Attention, call: Call = call, loss: Callable[[Tensor], Tensor] = loss) -> list[Tensor]:
            leaves = call.leaves()
            sources = split_tensors(leaves)[1]
            first = torch.autograd.grad(loss(leaves.run(attn)), sources, create_graph=True, materialize_grads=True)
            total = torch.stack([g.sin().sum() for g in first]).sum()
            return list(torch.autograd.grad(total, sources, materialize_grads=True))

        try:
            second_grads = second(attn)
        except RuntimeError as error:
            answers.add(format_refusal(error))
            continue
        attn.backend = "dense"
        answers.add("yes" if measure_difference(second_grads, second(attn)) < 1e-9 else "no: wrong")
    return "; ".join(sorted(answers))


def probe_compile(spec: str) -> str:
    """torch.compile of a forward and a backward pass, compared with eager ones; graph breaks are counted."""
    fresh, call = draw_call(spec)  # one that has not run before
    leaves = call.leaves()
    sources = split_tensors(leaves)[1]
    expected = leaves.run(draw_call(spec)[0])
    torch.compiler.reset()
    breaks = 0
    try:
        actual = torch.compile(CallModule(fresh, call), fullgraph=True)(*sources)
    except Unsupported:
        before = count_graph_breaks()
        actual = torch.compile(CallModule(draw_call(spec)[0], call))(*sources)
        breaks = max(count_graph_breaks() - before, 1)  # torch does not count a frame that it skips completely
    pairs = [
        [x.detach(), *torch.autograd.grad((x * make_weights(x)).sum(), sources, materialize_grads=True)]
        for x in (actual, expected)
    ]
    if (worst := measure_difference(*pairs)) > TOLERANCE:
        return f"no: off by {worst:.1g}"
    return "yes" if not breaks else f"{breaks} graph break{'s' * (breaks > 1)}"


def probe_export(spec: str) -> str:
    """torch.export, and the exported program's result for other inputs."""
    attn, call = draw_call(spec)
    tensors = split_tensors(call)[1]
    program = CallModule(attn, call)
    with torch.no_grad():
        try:
            exported = torch.export.export(program, tuple(tensors)).module()
        except ea.UnsupportedError as error:
            return format_refusal(error)
        changed = [x.flip(2) * 0.9 for x in tensors]
        return "yes" if measure_difference([exported(*changed)], [program(*changed)]) < TOLERANCE else "no: wrong"


def probe_vmap(spec: str) -> str:
    """torch.func.vmap over the batch."""
    return _probe_transform(spec, lambda run, tensors: torch.func.vmap(run)(*tensors))


def probe_func_grad(spec: str) -> str:
    """torch.func.grad for each member of a batch, with respect to all tensors of a call."""

    def transform(run: Callable[..., Tensor], tensors: list[Tensor]) -> tuple[Tensor, ...]:
        gradient = torch.func.grad(lambda *x: run(*x).sin().sum(), argnums=tuple(range(len(tensors))))
        return torch.func.vmap(gradient)(*tensors)

    return _probe_transform(
        spec,
        transform,
        lambda run, tensors: torch.autograd.grad(run(*tensors).sin().sum(), tensors, materialize_grads=True),
    )


Transform = Callable[[Callable[..., Tensor], list[Tensor]], Tensor | tuple[Tensor, ...]]


def _probe_transform(spec: str, transform: Transform, plain: Transform = lambda run, tensors: run(*tensors)) -> str:
    attn, call = draw_call(spec, torch.float64)
    program = CallModule(attn, call)
    tensors = split_tensors(call)[1]
    expected = plain(program, split_tensors(call.leaves())[1])
    try:
        actual = transform(lambda *x: program(*(y[None] for y in x))[0], tensors)
    except (RuntimeError, ValueError) as error:
        return format_refusal(error)
    pairs = ([x] if isinstance(x, Tensor) else list(x) for x in (actual, expected))
    return "yes" if measure_difference(*pairs) < 1e-9 else "no: wrong"


PROBES: dict[str, Callable[[str], str]] = {
    "autocast": probe_autocast,
    "double_backward": probe_double_backward,
    "compile": probe_compile,
    "export": probe_export,
    "vmap": probe_vmap,
    "func_grad": probe_func_grad,
}
