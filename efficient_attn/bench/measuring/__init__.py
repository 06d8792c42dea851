"""From cases to records: preparation, verification, interleaved timing in worker processes."""
