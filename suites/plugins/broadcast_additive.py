"""Additive attention computed by its formula, which stores N x M x A sums for each head."""

import efficient_attn as ea
from efficient_attn.variants.full.additive import Additive


@ea.register("broadcast_additive", family="full", sentence="Additive attention that stores the sums of all pairs.")
class BroadcastAdditive(Additive):
    """tanh(W_q q + W_k k) for all pairs at once, then the softmax (no padding; M = N)."""

    backends = ("broadcast", "dense")

    def compute(self, q, k, v, mask, **inputs):
        scores = ((q @ self.w_q.mT)[:, :, :, None] + (k @ self.w_k.mT)[:, :, None]).tanh_() @ self.u[:, None, :, None]
        scores = scores[..., 0]
        if mask.causal:
            scores = scores.masked_fill(scores.new_ones(scores.shape[2:]).tril() == 0, float("-inf"))
        return scores.softmax(-1) @ v

    def workspace_bytes(self, shape, itemsize, *, causal, training):
        return (4 if training else 2) * shape.batch * shape.heads * shape.n * shape.m * self.u.shape[1] * itemsize
