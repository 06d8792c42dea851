"""Runs on several machines: each node has a session of its own, and the records come to one store."""
