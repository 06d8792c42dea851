"""Recurrent states with gates: decays of the past, and the delta rule."""
