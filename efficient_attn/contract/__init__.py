"""What every mechanism keeps: sizes, masks, states, traits, and the base module."""
