"""Approximation error against exact attention, on activations of trained models."""
