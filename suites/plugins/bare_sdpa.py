"""torch's scaled_dot_product_attention without our checks, to measure their overhead."""

import torch.nn.functional as F

import efficient_attn as ea


@ea.register("bare_sdpa", family="full", sentence="torch's scaled_dot_product_attention, called directly.")
class BareSDPA(ea.SoftmaxAttention):
    """``scaled_dot_product_attention(q, k, v)`` without any check (M = N, no padding). torch selects its kernel."""

    backends = ("sdpa", "dense")

    def forward(self, q, k, v, mask=None, **inputs):
        if (
            self.backend == "dense" or v is None or q.shape[2] != k.shape[2]
        ):  # is_causal would align other queries first
            return super().forward(q, k, v, mask)
        causal = mask is not None and mask.causal
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropping, is_causal=causal)
