"""Softmax attention over keys that are selected by the query or by their own contents, for trained models."""
