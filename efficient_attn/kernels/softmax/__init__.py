"""Exact attention, and its decoding."""
