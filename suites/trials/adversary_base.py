"""What the adversarial mechanisms of `adversaries*.py` have in common."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

import efficient_attn as ea


class ExactMechanism(ea.SoftmaxAttention):
    """Exact attention, with a count of calls for the subclasses."""

    honest = False

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: ea.Mask) -> Tensor:
        return super().compute(q, k, v, mask)


def register_pairs(mechanisms: Mapping[str, type[ExactMechanism]]) -> None:
    """Register each mechanism as ``zz_NAME``, and its honest counterpart as ``zz_honest_NAME``."""
    for name, cls in mechanisms.items():
        members = {"honest": True, "__doc__": cls.__doc__, "__module__": cls.__module__}
        ea.register(f"zz_{name}", family="full")(cls)
        ea.register(f"zz_honest_{name}", family="full")(type(f"Honest{cls.__name__}", (cls,), members))
