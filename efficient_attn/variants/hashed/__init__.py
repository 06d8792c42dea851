"""Softmax over the keys that hash like the query."""
