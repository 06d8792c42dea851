"""Exact attention whose heads share keys and values, or the latent that both are made from."""
