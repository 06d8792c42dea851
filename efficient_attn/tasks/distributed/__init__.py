"""Attention over the ranks of a process group: differences from one process, bytes sent, and time by ranks."""
