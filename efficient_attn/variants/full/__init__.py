"""Exact attention over all keys, and the base class of all softmax attention over all keys."""
