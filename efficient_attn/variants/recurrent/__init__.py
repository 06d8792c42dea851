"""Recurrent states with decays that depend on the input, and the delta rule."""
