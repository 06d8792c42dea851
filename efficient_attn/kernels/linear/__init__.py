"""Linear attention: sums, scans, steps."""
