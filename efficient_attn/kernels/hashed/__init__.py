"""Hashing in rounds, and softmax over their chunks."""
