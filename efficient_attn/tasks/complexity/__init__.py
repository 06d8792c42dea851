"""Growth of time and memory with length and width, compared with published formulas."""
