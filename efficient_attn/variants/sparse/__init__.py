"""Softmax over a pattern of pairs: one engine, and the patterns that papers have named."""
