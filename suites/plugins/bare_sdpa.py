"""torch's scaled_dot_product_attention without our checks, to measure their overhead."""

from contextlib import nullcontext
from typing import Literal

import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import efficient_attn as ea

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


@ea.register("bare_sdpa", family="full", sentence="torch's scaled_dot_product_attention, called directly.")
class BareSDPA(ea.SoftmaxAttention):
    """``scaled_dot_product_attention(q, k, v)`` without any check (M = N, no padding).

    kernel: the one that torch must use; ``chosen``: torch chooses.
    """

    backends = ("sdpa", "dense")

    def __init__(self, *, kernel: Literal["chosen", "flash", "cudnn", "efficient", "math"] = "chosen") -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, q, k, v, mask=None, **inputs):
        if (
            self.backend == "dense" or v is None or q.shape[2] != k.shape[2]
        ):  # is_causal would align other queries first
            return super().forward(q, k, v, mask)
        with nullcontext() if self.kernel == "chosen" else sdpa_kernel(KERNELS[self.kernel]):
            return F.scaled_dot_product_attention(
                q, k, v, dropout_p=self.dropping, is_causal=mask is not None and mask.causal
            )
