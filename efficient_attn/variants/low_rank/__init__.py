"""Softmax over a few mixtures of the keys, learned ones or means of segments, instead of over all keys."""
