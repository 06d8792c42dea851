"""Fast implementations, named by what they compute, and the arithmetic of references."""
