"""Fidelity: how far each mechanism is from exact attention on queries, keys and values of a trained model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import TYPE_CHECKING

from pydantic import Field

from ..bench.asked import Asked
from ..bench.place import Cell, Place
from ..bench.task import Guess, Keys, Task
from ..results.rows import Record, Row, finite
from ..results.section import Section
from .activations import Activations

if TYPE_CHECKING:
    from ..bench.case import Case
    from ..instruments.ceilings import Ceiling


class FidelityKeys(Keys):
    """activations: ``minilm``, or a file of captured queries, keys and values; its content tells cases apart."""

    activations: str = Field(default="minilm", exclude=True)


def plan(asked: Asked) -> Iterator[tuple[Cell, int | None]]:
    """A cell for each layer that was captured, on each device, in each dtype and direction."""
    found = Activations.find(asked.keys.activations)
    _, heads, length, width = found.q.shape
    for at, layer in product(asked.grid.combine("causal"), found.layers):
        sizes = {"heads": heads, "seq_len": length, "max_len": length, "head_dim": width}
        place = Place(**at, **sizes, inputs=found.label, layer=layer)
        yield asked.cell(place, activations=asked.keys.activations), found.k.shape[1]


def judge(case: Case, row: Row, at: Callable[..., None]) -> Record:
    """Prove a case right on its layer, then compare it with exact attention there."""
    from dataclasses import asdict

    import torch

    from ..bench.comparison import check_error
    from ..contract.mask import Mask
    from ..instruments.distance import relative_error
    from ..instruments.guard import watched
    from .distances import measure_distances

    place = case.cell.place
    assert place.layer is not None
    arrays = Activations.find(case.keys.activations).layer(place.layer)
    q, k, v = (torch.from_numpy(x).to(device=place.device, dtype=getattr(torch, place.dtype)) for x in arrays)
    attn, mask = case.create(), Mask(causal=place.causal)
    with torch.no_grad(), watched((q, k, v)):
        error = relative_error(attn(q, k, v, mask), case.create(backend="dense")(q, k, v, mask))
        row.oracle_error = check_error(error, place.dtype)
        found = asdict(measure_distances(attn, q, k, v, mask))
    row.backend_used, _ = attn.what_runs(case.shape, causal=place.causal, dtype=q.dtype, gradient=False)
    row.clamped_rows = attn.clamped_rows(q, k, v, mask)
    row.parameters = sum(p.numel() for p in attn.parameters())
    mean_value_error = found.pop("mean_value_error")
    for name, value in found.items():
        setattr(row, name, finite(value))
    return Record(row, {"mean_value_error": mean_value_error})


def guess(case: Case, best: Ceiling) -> Guess:
    """A call, and the weights of every row twice: the mechanism's and exact attention's, in float64."""
    from ..bench.expect import guess_call

    s, call = case.shape, guess_call(case, best)
    return call._replace(call_bytes=call.call_bytes + 2 * 8 * s.batch * s.heads * s.n * s.m)


FIDELITY = Task(
    name="fidelity",
    words=("fidelity",),
    keys=FidelityKeys,
    plan=plan,
    judge=judge,
    guess=guess,
    sections=(
        Section(name="fidelity", task="fidelity", title="Fidelity", layout="fidelity", x="layer", y="relative_error"),
    ),
)
