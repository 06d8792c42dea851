"""Hashing in rounds, and softmax over the chunks of the sorted order, each pair once."""
