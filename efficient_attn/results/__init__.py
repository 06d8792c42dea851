"""Rows, where they are kept, and the frames made of them. No torch from here on."""
