"""Linear attention without N x M weights: sums of keys, a causal scan over chunks, single steps for decoding."""
