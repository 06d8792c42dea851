"""The layer around a mechanism, its weights, and baselines."""
