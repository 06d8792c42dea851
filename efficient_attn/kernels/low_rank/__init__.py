"""Keys and values reduced along the length, by learned projections or as means of segments."""
