"""Softmax over a pattern: its plan of tiles over views and gathered blocks, and their parts joined into one result."""
