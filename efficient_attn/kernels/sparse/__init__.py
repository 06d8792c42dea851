"""A pattern's plan, its tiles, and their parts joined."""
