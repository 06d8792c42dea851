"""Heads that share keys and values."""
