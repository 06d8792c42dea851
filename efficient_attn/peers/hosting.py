"""Import and run layers of other libraries: given tensors replace projections, and random numbers use our seeds."""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..contract import Attention, Growth, Mask, Shape, Traits
from ..errors import UnsupportedError, UsageError
from ..kernels.sparse.tile_plan import plan_parts
from ..patterns import Geometry, Pattern
from ..variants.sparse.sparse_attention import attend_pattern

SPARSE_GROWTH = "O(N P), P keys a query", "O(N P): all weights are written to memory"
FLA_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # of its kernels
COPIES = 3  # of what a library stores, in training: with gradients


class LibraryAttention(Attention):
    """Base class of peers. declared: the traits of all instances."""

    backends = ("library", "dense")
    declared: ClassVar[Traits]

    @property
    def traits(self) -> Traits:
        return self.declared

    def workspace_bytes(self, shape: Shape, itemsize: int, *, causal: bool, training: bool) -> int:
        size = super().workspace_bytes(shape, itemsize, causal=causal, training=training)
        stored = self.growth.cost(shape.n, shape.m, causal) + self.count_sums(shape, causal=causal)
        return size + int((COPIES if training else 1) * shape.batch * shape.heads * stored * itemsize)

    def count_sums(self, shape: Shape, *, causal: bool) -> int:
        """The numbers of sums that a head keeps, besides the weights that growth.cost counts."""
        return 0


class LibraryForm(LibraryAttention):
    """A library's form of one of our mechanisms, whose definition is its reference, for whole sequences."""

    def __init__(self, defined: Attention) -> None:
        super().__init__()
        self._defined = defined
        self._traits = replace(defined.traits, cross=False, padding=False, decode=False, grouped=False)

    @property
    def traits(self) -> Traits:
        return self._traits

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        return self._defined.oracle(q, k, v, mask, **inputs)


class LibraryPattern(LibraryAttention):
    """A library's softmax over one of our patterns, which provides the reference and counts the pairs."""

    pattern: Pattern

    @property
    def growth(self) -> Growth:
        return Growth(*SPARSE_GROWTH, self.pairs)

    def oracle(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, **inputs: Tensor) -> Tensor:
        return attend_pattern(q, k, v, mask, self.pattern)

    def pairs(self, n: int, m: int, causal: bool) -> int:
        return sum(tiling.pairs() for tiling in plan_parts(self.pattern, Geometry(n, m, m - n, causal)))


def import_library(peer: str, package: str, module: str) -> Any:
    """A module of a peer's library. Raises `UsageError` with the installation command if it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise make_missing_error(peer, package) from error


def make_missing_error(peer: str, package: str) -> UsageError:
    """The error for a peer whose library is not installed."""
    return UsageError(f"{peer} needs the package {package}: pip install 'efficient-attn[peers]'")


@cache
def load_fla_operations(peer: str, operation: str) -> ModuleType:
    """The plain forms of an operation; not stored on instances, because functions of such a file cannot be pickled.

    Raises `UsageError` with the installation command if the file, or one of its imports, is missing.
    """
    package_spec = importlib.util.find_spec("fla")  # finding a top-level package runs none of its code
    folders = (package_spec and package_spec.submodule_search_locations) or ()
    paths = (Path(folder, "ops", operation, "naive.py") for folder in folders)
    path = next(filter(Path.is_file, paths), None)
    spec = path and importlib.util.spec_from_file_location(f"fla.ops.{operation}.naive", path)
    if not spec or not spec.loader:
        raise make_missing_error(peer, "fla-core")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise make_missing_error(peer, "fla-core") from error
    return module


class FixedOutput(nn.Module):
    """Replaces a projection: returns the tensor that was set, whatever its input."""

    output: Tensor | None = None

    def forward(self, hidden_states: Tensor) -> Tensor:
        assert self.output is not None
        return self.output


def make_layer(create: Callable[[], nn.Module], *projections: str) -> nn.Module:
    """A library's layer in evaluation mode, with a `FixedOutput` for each of these projections.

    The other parameters must be unused: they are on the meta device.
    """
    with torch.device("meta"):  # nothing is allocated, and no random number is drawn
        layer = create()
    for name in projections:
        setattr(layer, name, FixedOutput())
    return layer.eval()


def check_value_width(attn: Attention, q: Tensor, v: Tensor) -> None:
    """Raise `UnsupportedError` for values that are not as wide as keys."""
    if v.shape[-1] != q.shape[-1]:
        raise UnsupportedError(f"{attn.label} requires values as wide as keys, got {v.shape[-1]} and {q.shape[-1]}")


@contextmanager
def fixed_outputs(layer: nn.Module, **outputs: Tensor) -> Iterator[None]:
    """Set the outputs of the layer's `FixedOutput` modules, by name, within this context."""
    try:
        for name, tensor in outputs.items():
            getattr(layer, name).output = tensor
        yield
    finally:
        for name in outputs:
            getattr(layer, name).output = None


@contextmanager
def seeded_generator(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generator of the CPU or of a CUDA device within this context, and restore its state.

    ``torch.manual_seed`` would seed the generators of all devices.
    """
    generator, devices = torch.default_generator, []
    if device is not None and device.type == "cuda":
        devices = [torch.cuda.current_device() if device.index is None else device.index]
        generator = torch.cuda.default_generators[devices[0]]
    elif device is not None and device.type != "cpu":
        raise UnsupportedError(f"seeded random numbers are drawn on the CPU and on CUDA, not on {device.type}")
    with torch.random.fork_rng(devices):
        generator.manual_seed(seed % 2**63)
        yield
