"""torch's grouped attention over our cache, the baseline for folding groups into query rows."""

import torch.nn.functional as F

import efficient_attn as ea


@ea.register("sdpa_gqa", family="shared_kv", sentence="scaled_dot_product_attention with enable_gqa, over our cache.")
class SDPAGrouped(ea.SoftmaxAttention):
    """``scaled_dot_product_attention(q, k, v, enable_gqa=True)``, one query after all its keys."""

    backends = ("sdpa", "dense")

    def compute(self, q, k, v, mask, **inputs):
        if q.shape[2] != 1:
            return super().compute(q, k, v, mask, **inputs)
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
