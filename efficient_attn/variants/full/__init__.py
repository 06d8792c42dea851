"""Exact attention."""
