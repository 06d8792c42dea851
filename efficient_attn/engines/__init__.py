"""Engines carry jobs out. They know no case: a job says on a small shared board what it is at."""
