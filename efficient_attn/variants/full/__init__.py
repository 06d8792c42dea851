"""Exact attention over all keys, and the base of everything else that is a softmax over all of them."""
