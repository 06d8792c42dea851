"""Keys and values made fewer along the length, by learned projections or as means of segments."""
