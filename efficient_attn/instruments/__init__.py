"""What measures: they know no case."""
