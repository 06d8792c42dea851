"""Learned or segment mixtures of keys."""
