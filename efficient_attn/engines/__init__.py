"""Engines run jobs. They know nothing about cases: a job reports its progress on a small shared board."""
