"""What a spec can do at home in torch: a probe tries one thing on a small call, and answers in a word or with why not.

    python suites/trials/probes.py [SPEC...]

prints a row for each spec, by default all registered names. Every answer but a refusal comes from numbers: results and
gradients are held to the plain eager call, second derivatives to the oracle's.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported

import efficient_attn as ea
from efficient_attn.bench.measuring.workload import count_graph_breaks
from efficient_attn.testing.subject import Call, Subject

LENGTH = 130
NEAR = 1e-4  # of float32 results that are summed in another order


def drawn(spec: str, dtype: torch.dtype = torch.float32) -> tuple[ea.Attention, Call]:
    """A mechanism and a call of it, causal where it can be."""
    subject = Subject(spec)
    shape = subject.shape(LENGTH)
    call = subject.draw(shape, mask=ea.Mask(causal=subject.traits.causal), dtype=dtype)
    return subject.make(shape, dtype=dtype), call


def split(call: Call) -> tuple[list[str], list[Tensor]]:
    """A call's tensors and their names; what is one tensor comes once."""
    pairs = {id(x): (name, x) for name, x in call.tensors.items()}.values()
    return [name for name, _ in pairs], [x for _, x in pairs]


class Program(nn.Module):
    """A call as a module whose arguments are tensors."""

    def __init__(self, attn: ea.Attention, call: Call) -> None:
        super().__init__()
        self.attn, self.call, self.names = attn, call, split(call)[0]

    def forward(self, *given: Tensor) -> Tensor:
        q, k, v, rest = given[0], given[0], None, dict(zip(self.names, given, strict=True))
        if not self.call.tied:
            q, k = rest.pop("q"), rest.pop("k")
        else:
            rest.pop(self.names[0])
        v = rest.pop("v", None)
        return self.attn(q, k, v, self.call.mask, **rest)


def weight_of(out: Tensor) -> Tensor:
    return torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)


def off(got: list[Tensor], want: list[Tensor]) -> float:
    """The largest difference, in sizes of what is wanted."""
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1)) for a, b in zip(got, want, strict=True))


def refusal(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"refused: {text[:100]}"


def autocast(spec: str) -> str:
    """Output and gradients in bfloat16 against float32's, on inputs that bfloat16 can tell apart."""
    attn, call = drawn(spec)
    call = call.change(lambda x: x.bfloat16().float())
    out, want = call.gradients(attn)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got_out, got = call.gradients(attn)
    except ea.UnsupportedError as error:  # a backend that does not take the dtype
        return refusal(error)
    if got_out.dtype != torch.bfloat16:
        return f"no: the output is {got_out.dtype}"
    pairs = [(got_out.float(), out), *((got[n], want[n]) for n in want)]
    worst = max(float((a - b).norm() / (b.norm() + 0.03 * b.numel() ** 0.5)) for a, b in pairs)
    return "yes" if worst < 0.03 else f"no: off by {worst:.0%}"


def double_backward(spec: str) -> str:
    """Second derivatives of losses that are linear in the output, and that are not, against the oracle's."""
    answers = set()
    for loss in (lambda out: (out * weight_of(out)).sum(), lambda out: out.square().sum()):
        attn, call = drawn(spec, torch.float64)

        def second(attn: ea.Attention, call: Call = call, loss: Callable[[Tensor], Tensor] = loss) -> list[Tensor]:
            leaves = call.leaves()
            sources = split(leaves)[1]
            first = torch.autograd.grad(loss(leaves.run(attn)), sources, create_graph=True)
            total = torch.stack([g.sin().sum() for g in first]).sum()
            return list(torch.autograd.grad(total, sources, materialize_grads=True))

        try:
            got = second(attn)
        except RuntimeError as error:
            answers.add(refusal(error))
            continue
        attn.backend = "dense"
        answers.add("yes" if off(got, second(attn)) < 1e-9 else "no: wrong")
    return "; ".join(sorted(answers))


def compile_(spec: str) -> str:
    """torch.compile of a forward and a backward pass, against the eager ones; graph breaks are counted."""
    fresh, call = drawn(spec)  # one that has not run before
    leaves = call.leaves()
    sources = split(leaves)[1]
    want = leaves.run(drawn(spec)[0])
    torch.compiler.reset()
    breaks = 0
    try:
        got = torch.compile(Program(fresh, call), fullgraph=True)(*sources)
    except Unsupported:
        before = count_graph_breaks()
        got = torch.compile(Program(drawn(spec)[0], call))(*sources)
        breaks = max(count_graph_breaks() - before, 1)  # a frame that is given up as a whole is not counted by torch
    pairs = [[x.detach(), *torch.autograd.grad((x * weight_of(x)).sum(), sources)] for x in (got, want)]
    if (worst := off(*pairs)) > NEAR:
        return f"no: off by {worst:.1g}"
    return "yes" if not breaks else f"{breaks} graph break{'s' * (breaks > 1)}"


def export(spec: str) -> str:
    """torch.export, and what the exported program gives for other numbers."""
    attn, call = drawn(spec)
    given = split(call)[1]
    program = Program(attn, call)
    with torch.no_grad():
        try:
            exported = torch.export.export(program, tuple(given)).module()
        except ea.UnsupportedError as error:
            return refusal(error)
        others = [x.flip(2) * 0.9 for x in given]
        return "yes" if off([exported(*others)], [program(*others)]) < NEAR else "no: wrong"


def vmap(spec: str) -> str:
    """torch.func.vmap over the batch."""
    return _transformed(spec, lambda run, given: torch.func.vmap(run)(*given))


def func_grad(spec: str) -> str:
    """torch.func.grad for each member of a batch by itself, by all tensors of a call."""

    def transform(run: Callable[..., Tensor], given: list[Tensor]) -> tuple[Tensor, ...]:
        each = torch.func.grad(lambda *x: run(*x).sin().sum(), argnums=tuple(range(len(given))))
        return torch.func.vmap(each)(*given)

    return _transformed(spec, transform, lambda run, given: torch.autograd.grad(run(*given).sin().sum(), given))


Transform = Callable[[Callable[..., Tensor], list[Tensor]], Tensor | tuple[Tensor, ...]]


def _transformed(spec: str, transform: Transform, plain: Transform = lambda run, given: run(*given)) -> str:
    attn, call = drawn(spec, torch.float64)
    program = Program(attn, call)
    given = split(call)[1]
    want = plain(program, split(call.leaves())[1])
    try:
        got = transform(lambda *x: program(*(y[None] for y in x))[0], given)
    except (RuntimeError, ValueError) as error:
        return refusal(error)
    pairs = ([x] if isinstance(x, Tensor) else list(x) for x in (got, want))
    return "yes" if off(*pairs) < 1e-9 else "no: wrong"


PROBES: dict[str, Callable[[str], str]] = {
    "autocast": autocast,
    "double_backward": double_backward,
    "compile": compile_,
    "export": export,
    "vmap": vmap,
    "func_grad": func_grad,
}


def main(specs: list[str]) -> None:
    warnings.simplefilter("ignore")
    print("| spec |", " | ".join(PROBES), "|")
    print("|---" * (len(PROBES) + 1) + "|")
    for spec in specs or ea.names():
        print(f"| `{spec}` |", " | ".join(probe(spec) for probe in PROBES.values()), "|", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
