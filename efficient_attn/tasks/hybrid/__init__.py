"""Hybrids: at which layers of a trained model a mechanism can stand, and what such a model loses and saves."""
