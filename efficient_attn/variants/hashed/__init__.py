"""Keys that hash alike."""
