"""The causal scan as a custom op, for torch.compile and torch.export. Shapes and references are those of `sums`.

Eager kernels store features for one stretch of positions at a time, and recompute them in the backward pass. Here
torch's compiler handles the features, which need memory for all positions.
"""

from typing import Any, NamedTuple, get_type_hints

from torch import Tensor

from ..custom_ops import make_op, set_signature
from ..native import cpp_scan
from . import chunks
from .linear_config import KeyInputs, LinearConfig, OutputGrads, Stretch
from .scan_state import ScanState
from .sums import Sums, apply_divisor, start_sums


class ScanFlags(NamedTuple):
    """weighted: whether the state has a reference. decays, steady: see `LinearConfig`."""

    weighted: bool
    decays: bool
    steady: bool
    use_cpp: bool


class ScanInputs(NamedTuple):
    """Features ``x [Bh, G, N, F]`` of queries, the keys of `Stretch`, and the state before them, of `Sums`."""

    x: Tensor
    y: Tensor
    v: Tensor
    a: Tensor | None
    kv: Tensor
    z: Tensor
    reference: Tensor

    def keys(self) -> Stretch:
        """The keys as a kernel reads them."""
        return Stretch(self.y, self.v, self.a)

    def copy_state(self, flags: ScanFlags) -> ScanState:
        """A state, which copies the sums: an op must not change its inputs."""
        reference = self.reference.clone() if flags.weighted else None
        return ScanState(Sums(self.kv, self.z, reference), decays=flags.decays, steady=flags.steady)


INPUT_TYPES, FLAG_TYPES = get_type_hints(ScanInputs), get_type_hints(ScanFlags)
# of the gradients by the op's results: rows before division, their sums of weights, and the sums after them
GRAD_TYPES = dict.fromkeys(("grad_top", "grad_total", "grad_kv", "grad_z"), Tensor)


def scan(config: LinearConfig, q: Tensor, keys: KeyInputs, past: Sums | None) -> tuple[Tensor, Sums]:
    """See `scan.scan`."""
    all_positions = slice(0, q.shape[2])
    x, _ = config.queries(q, all_positions)
    y, v, a = config.stretch(keys, all_positions)
    kv, z, reference = start_sums(config, keys, past)
    flags = ScanFlags(reference is not None, config.decays, config.steady, config.native)
    zero = kv.new_zeros(len(kv)) if reference is None else reference
    top, total, kv, z, end_reference = _scan_op(*ScanInputs(x, y, v, a, kv, z, zero), *flags)
    return apply_divisor(config, top, total).to(q.dtype), Sums(kv, z, None if reference is None else end_reference)


def _split(arguments: tuple[Any, ...]) -> tuple[ScanInputs, ScanFlags]:
    return ScanInputs(*arguments[: len(INPUT_TYPES)]), ScanFlags(*arguments[len(INPUT_TYPES) :])


def _run(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    inputs, flags = _split(arguments)
    state = inputs.copy_state(flags)
    top, total = (cpp_scan if flags.use_cpp else chunks).attend(inputs.x, inputs.keys(), state)
    assert total is not None
    return top, total, *state.split(), inputs.reference.clone() if state.reference is None else state.reference


def _shapes(*arguments: Any) -> tuple[Tensor, ...]:
    inputs, _ = _split(arguments)
    x, ends = inputs.x, (inputs.kv, inputs.z, inputs.reference)
    top, total = x.new_empty(*x.shape[:3], inputs.v.shape[2]), x.new_empty(*x.shape[:3], 1)
    return top, total, *(t.new_empty(t.shape) for t in ends)


def _run_backward(
    grad_top: Tensor, grad_total: Tensor, grad_kv: Tensor, grad_z: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    inputs, flags = _split(arguments)
    kernel, grads, keys = cpp_scan if flags.use_cpp else chunks, OutputGrads(grad_top, grad_total), inputs.keys()
    grad_x, references = kernel.backward_queries(grads, keys, inputs.copy_state(flags))
    grad_state = ScanState(Sums(grad_kv, grad_z), decays=flags.decays, steady=flags.steady)
    grad_y, grad_v = kernel.backward_keys(inputs.x, keys, grads, grad_state, references)
    grad_a = keys.y.new_empty(0) if keys.a is None else (grad_y * keys.y).sum(-1).to(keys.a.dtype)
    return grad_x, grad_y, grad_v, grad_a, *grad_state.split()


def _backward_shapes(*arguments: Any) -> tuple[Tensor, ...]:
    (x, y, v, a, kv, z, _), _ = _split(arguments[len(GRAD_TYPES) :])
    return tuple(t.new_empty(t.shape) for t in (x, y, v, y.new_empty(0) if a is None else a, kv, z))


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    scan_inputs, ctx.flags = _split(inputs)
    *_, reference = output
    ctx.save_for_backward(*scan_inputs)
    ctx.mark_non_differentiable(reference)


def _backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    *result_grads, _ = grads  # the reference has none
    inputs = ScanInputs(*ctx.saved_tensors)
    grad_x, grad_y, grad_v, grad_a, grad_kv, grad_z = _scan_backward_op(*result_grads, *inputs, *ctx.flags)
    grad_a = None if inputs.a is None else grad_a
    return grad_x, grad_y, grad_v, grad_a, grad_kv, grad_z, None, *[None] * len(FLAG_TYPES)


set_signature(_run, {**INPUT_TYPES, **FLAG_TYPES}, 5)
set_signature(_run_backward, {**GRAD_TYPES, **INPUT_TYPES, **FLAG_TYPES}, 6)
_scan_op = make_op("scan", _run, _shapes)
_scan_backward_op = make_op("scan_backward", _run_backward, _backward_shapes)
_scan_op.register_autograd(_backward, setup_context=_setup_context)
