"""Models of other people, with our mechanisms inside."""
