"""The site that people publish: all runs as pages that link to each other, and ask nobody else for anything."""
