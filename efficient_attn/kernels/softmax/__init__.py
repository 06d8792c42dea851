"""Exact softmax attention through torch's fused kernels: grouped heads, latents, a few queries over a long cache."""
