"""Keys mixed along the length."""
