"""Who carries a job out."""
