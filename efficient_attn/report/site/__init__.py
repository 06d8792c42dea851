"""The static site of `publish`: all runs as linked pages without external requests."""
