"""The contract of mechanisms: sizes, masks, states, traits, and the base module."""
