"""Rows, their files, and data frames of them. Nothing here imports torch."""
