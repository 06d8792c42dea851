"""Exact attention with shared keys and values, or a shared latent that both are computed from."""
