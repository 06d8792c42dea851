"""torch's fused kernels by name, and the one that a call on a GPU uses if it names none.

Left alone, torch's scaled_dot_product_attention selects a kernel by rules of its own, and which one it was is not
known. Here every call in half precision names its kernel: with a backend of that name, or the faster one of flash
attention and cuDNN's, which are timed in the first call of a geometry.
"""

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import attention
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...contract.shapes import Shape
from ...errors import UnsupportedError
from ..autotuning import autotuner
from ..autotuning.candidates import Tunable, TuningPoint, format_kind
from ..custom_ops import in_functorch_transform
from ..derivatives import wants_gradient
from ..half_precision import HALF_DTYPES

KERNELS: Mapping[str, SDPBackend] = MappingProxyType(
    {
        **dict.fromkeys(("flash", "flash3", "flash4"), SDPBackend.FLASH_ATTENTION),
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH,
    }
)
IMPLEMENTATIONS = {"flash": None, "flash3": "FA3", "flash4": "FA4"}  # of flash attention, as torch calls them
DTYPES = {**dict.fromkeys((*IMPLEMENTATIONS, "cudnn"), HALF_DTYPES), "efficient": (*HALF_DTYPES, torch.float32)}
MAX_FLASH_WIDTH = 256  # of heads
WIDTH_UNIT = 8  # of heads, of the kernels other than flash attention: torch pads its heads
MAX_ROWS = 32  # queries up to which a call may be a decode step, whose number of keys is another one in each call
MAX_ANSWERS = 10_000  # cached answers of torch
TORCH = "torch"  # in a row's choices: torch selected the kernel

_ANSWERS: dict[tuple[Any, ...], str | None] = {}

ATTENTION = Tunable(
    name="attention",
    implementations=(*IMPLEMENTATIONS, "cudnn"),
    points=(),  # timed where they first occur
    make_candidates=lambda point: {},
    rule=lambda point: "flash",
)


def use_kernel(kernel: str) -> AbstractContextManager[Any]:
    """The context in which torch's attention runs this kernel, or raises an error."""
    return sdpa_kernel(KERNELS[kernel])


def fold_groups(q: Tensor, k: Tensor, allowed: Tensor | None, causal: bool) -> Tensor:
    """The heads of a group as more queries of their key-value head, where all see the same keys; else q."""
    if k.shape[1] == q.shape[1] or causal or (allowed is not None and allowed.shape[2] > 1):
        return q
    return q.reshape(len(k), k.shape[1], -1, q.shape[-1])


def find_kernel(
    backend: str, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, *, causal: bool, dropout: float, scale: float
) -> str | None:
    """The kernel of a call with q, k and v of one width, whose groups are folded; None leaves it to torch. A backend
    that names one raises `UnsupportedError` with the reason where it cannot serve.

    Otherwise calls on a GPU in half precision without an explicit mask use flash attention or cuDNN's kernel, whichever
    was faster at their geometry. By rule, and without timing, it is flash attention for grouped heads (pytorch#193893),
    few queries, dropout, and where torch compiles or transforms a call.
    """
    rows = fold_groups(q, k, allowed, causal)
    if backend in KERNELS:
        if reason := why_not(backend, rows, k, v, allowed, causal=causal, dropout=dropout):
            raise UnsupportedError(f"backend {backend!r} cannot compute this call: {reason}")
        return backend
    if q.device.type != "cuda" or q.dtype not in HALF_DTYPES:
        return None
    flash, is_traced = find_flash(), _is_traced()
    by_rule = is_traced or dropout or k.shape[1] < q.shape[1] or q.shape[2] <= MAX_ROWS
    by_rule = by_rule or (causal and q.shape[2] < k.shape[2])  # aligned with the last key, which cuDNN does not do
    names: list[str] = []
    for name in (flash,) if by_rule else (flash, "cudnn"):
        if name and allowed is None and is_enabled(name):
            names += [name] if why_not(name, rows, k, v, None, causal=causal, dropout=dropout) is None else []
    if is_traced:
        return next(iter(names), None)
    point = describe_call(q, k, causal=causal, trains=wants_gradient(q, k, v))
    if len(names) < 2:
        autotuner.record(ATTENTION.name, names[0] if names else TORCH, point)
        return next(iter(names), None)

    def time_kernels() -> Mapping[str, float]:
        return {name: time_kernel(name, rows, k, v, causal=causal, scale=scale) for name in names}

    name = autotuner.choose_timed(ATTENTION, point, None if is_capturing() else time_kernels)
    return name if name in names else names[0]


def attend_last_queries(q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float) -> Tensor:
    """Flash attention of causal queries that are aligned with the last of more keys. torch's function has no flag for
    that, and CausalBias, which calls this operation too, cannot be made under dispatch modes, such as counters."""
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout, True, scale=scale)[0]


def find_flash() -> str | None:
    """The name of the flash attention that torch runs: its own, or what ``activate_flash_attention_impl`` has put in
    its place; None if that has no name here."""
    active = getattr(attention, "current_flash_attention_impl", lambda: None)()
    return next((name for name, implementation in IMPLEMENTATIONS.items() if implementation == active), None)


def why_not_active(kernel: str) -> str | None:
    """Why torch does not run this implementation of flash attention; None for the active one and other kernels."""
    if kernel not in IMPLEMENTATIONS or kernel == (active := find_flash()):
        return None
    how = "restore_flash_attention_impl()"
    if implementation := IMPLEMENTATIONS[kernel]:
        how = f'activate_flash_attention_impl("{implementation}")'
    return f"torch runs {active or 'another implementation'} in its place; call torch.nn.attention.{how} first"


def takes_last_queries(backend: str, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> bool:
    """Whether a kernel serves causal queries that are aligned with the last of more keys, without an explicit mask:
    flash attention does."""
    if backend in IMPLEMENTATIONS:
        return True
    if backend != "sdpa" or q.device.type != "cuda" or q.dtype not in HALF_DTYPES or _is_traced():
        return False
    flash = find_flash()
    if flash is None or not is_enabled(flash):
        return False
    return why_not(flash, q, k, v, None, causal=True, dropout=dropout) is None


def why_not(
    kernel: str, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, *, causal: bool, dropout: float
) -> str | None:
    """Why a kernel cannot compute a call; None if it can. Where torch traces the call, only by the rules here."""
    if (reason := why_not_active(kernel)) or kernel == "math":
        return reason
    width = max(q.shape[-1], v.shape[-1])
    if q.dtype not in DTYPES[kernel]:
        return f"it takes {' and '.join(map(str, DTYPES[kernel]))}, not {q.dtype}"
    if kernel in IMPLEMENTATIONS:
        if allowed is not None:
            return "it takes no explicit mask, as padding needs one"
        if width > MAX_FLASH_WIDTH:
            return f"it takes heads of at most {MAX_FLASH_WIDTH}, not {width}"
        if causal and q.shape[2] < k.shape[2] and width % WIDTH_UNIT:
            return f"for queries that end with the last of more keys heads are a multiple of {WIDTH_UNIT}, not {width}"
        if dropout and kernel != "flash":
            return "it has no dropout"
    elif width % WIDTH_UNIT:
        return f"it takes heads of a multiple of {WIDTH_UNIT}, not {width}"
    if _is_traced():
        return None
    facts = kernel, q.shape, k.shape, v.shape, q.dtype, q.device, causal, dropout, wants_gradient(q, k, v)
    facts = *facts, None if allowed is None else allowed.shape, torch.are_deterministic_algorithms_enabled()
    if facts not in _ANSWERS:
        if len(_ANSWERS) >= MAX_ANSWERS:
            _ANSWERS.clear()
        is_causal = causal and q.shape[2] == k.shape[2]  # otherwise flash attention aligns them, without this flag
        groups = k.shape[1] < q.shape[1]
        _ANSWERS[facts] = _ask_torch(kernel, q, k, v, allowed, dropout, is_causal, groups)
    return _ANSWERS[facts]


def _ask_torch(kernel: str, *arguments: Any) -> str | None:
    """Torch's reason why a kernel cannot be used, which it gives as warnings. arguments: of its SDPAParams."""
    params = torch.backends.cuda.SDPAParams(*arguments)
    can_use = getattr(torch.backends.cuda, f"can_use_{'flash' if kernel in IMPLEMENTATIONS else kernel}_attention")
    with use_kernel(kernel):
        if can_use(params):
            return None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            can_use(params, True)
    reasons = (str(warning.message).partition(" (Triggered")[0].strip() for warning in caught)
    return f"torch: {'; '.join(reasons) or 'it gives no reason'}"


def describe_call(q: Tensor, k: Tensor, *, causal: bool, trains: bool) -> TuningPoint:
    """The geometry of a call. Lengths are rounded up to powers of two, so that few are timed where lengths vary."""
    kind = format_kind(q.dtype, trains=trains)
    sizes = _round_sizes(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2])
    return TuningPoint(f"{kind} causal" if causal else kind, (*sizes, q.shape[3]))


def list_used(shape: Shape) -> list[str]:
    """The kernels that calls of these sizes have used since the choices were cleared."""
    sizes, choices = _round_sizes(shape.batch, shape.heads, shape.kv_heads, shape.n, shape.m), autotuner.CHOICES
    used = {kernel for (name, _, _, point), kernel in choices.items() if (name, point[:-1]) == (ATTENTION.name, sizes)}
    return sorted(used)


def _round_sizes(batch: int, heads: int, kv_heads: int, n: int, m: int) -> tuple[int, ...]:
    return batch, heads, kv_heads, *(1 << max(length - 1, 0).bit_length() for length in (n, m))


def time_kernel(kernel: str, q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float, rounds: int = 5) -> float:
    """The least seconds of a call on its GPU, with the gradients that it has, after one that prepares."""
    trains = wants_gradient(q, k, v)
    rows, keys, values = inputs = [x.detach().requires_grad_(trains) for x in (q, k, v)]
    seconds = []
    for _ in range(rounds + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        with use_kernel(kernel):
            out = F.scaled_dot_product_attention(rows, keys, values, is_causal=causal, scale=scale)
        if trains:
            torch.autograd.grad(out, inputs, out.detach())
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return min(seconds[1:])


def is_capturing() -> bool:
    """Whether a CUDA graph is captured, during which nothing may wait."""
    return torch.cuda.is_current_stream_capturing()


def is_enabled(kernel: str) -> bool:
    """Whether the user's settings of torch allow a kernel."""
    name = "flash" if kernel in IMPLEMENTATIONS else kernel
    return getattr(torch.backends.cuda, f"{name}_sdp_enabled")()


def _is_traced() -> bool:
    return torch.compiler.is_compiling() or in_functorch_transform()
